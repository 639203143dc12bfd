"""Segments: names for contacts. What a query finds is kept fresh, what a frame holds is frozen (docs/segments.md)."""
