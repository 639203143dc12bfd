"""Analysts' SQL: `gateway` runs a query, `formats` writes its result; `api.store.sql_roles` isolates organizations."""
