"""Pages that are made on a schedule and mailed to people."""
