"""HTTP: each route parses, calls one use case and shapes the answer. No rules, no SQL."""
