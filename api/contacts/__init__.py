"""Contacts: reading and changing them, their timeline, merging, explaining, export and erasure."""
