"""HTTP: each route parses, calls one use case and shapes the response. No rules, no SQL."""
