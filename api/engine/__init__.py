"""The durable engine: claim due entries, advance them through the language, perform effects, record."""
