"""Analysts' SQL: `run` takes a question to its answer, `formats` writes it; what isolates them is in `api.store.sql_roles`."""
