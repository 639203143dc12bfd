"""The import of history: `importer` runs it.

On the way in, `formats` finds and opens files, `tables` (CSV, parquet) and `vendors` (lines of JSON, Segment, PostHog) turn them into
events as JSON text in the shape of the contract, and `rows` parses these. `chunk` and `contact_cache` store them.
"""
