"""The event catalog: counts of events by hour and day, the tail of recent events, and maintenance of their tables."""
