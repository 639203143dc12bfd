"""Lists the columns of the database that may contain values sent by callers, in clear text."""

PAYLOAD_COLUMNS = {
    ("events", "payload"), ("dry_runs", "payload"), ("contacts", "attributes"), ("entry_steps", "detail"),
    ("contact_changes", "old"), ("contact_changes", "new"),
    ("events", "attributes"), ("events", "replaced"), ("contacts", "replaced"),
    ("messages", "body"), ("messages", "recipient"), ("messages", "subject"),
}  # fmt: skip
"""Columns with data that callers sent, or with results that automations computed from it."""
