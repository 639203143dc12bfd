"""Where values that callers sent may be read in the database."""

PAYLOAD_AT_HOME = {
    ("events", "payload"), ("dry_runs", "payload"), ("contacts", "attributes"), ("messages", "body"), ("messages", "recipient"),
    ("messages", "subject"), ("entry_steps", "detail"),
}  # fmt: skip
"""Columns that hold what callers sent as data, or what automations made of it."""
