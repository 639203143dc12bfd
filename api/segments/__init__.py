"""Segments: named groups of contacts, refreshed from a query or frozen as an audience (docs/segments.md)."""
