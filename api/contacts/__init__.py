"""Contact care: what is known of one person, what it wants, and how it is forgotten."""
