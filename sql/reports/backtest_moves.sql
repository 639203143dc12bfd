-- The entries of the automation that began in the period and continued on another version, and those that were moved back.
{% import "backtest_macros.sql" as macros %}
SELECT e.contact_id, e.event_id::text, m.from_version, m.from_node_id, m.to_version, m.to_node_id, m.moved_at, m.moved_back_at
FROM automation_entries e
JOIN entry_moves m ON m.entry_id = e.id
WHERE e.automation_id = :automation AND m.automation_id = :automation AND e.created_at >= :since AND e.created_at < :until{{ macros.in_sample(sample, "e.contact_id") }}
