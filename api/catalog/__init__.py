"""The event catalog: counts of events by hour and day, the tail of recent events, and the maintenance of the tables beside it."""
