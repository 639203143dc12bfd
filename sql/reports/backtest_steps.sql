-- The steps of the entries of the automation that began in the period, in any order.
{% import "backtest_macros.sql" as macros %}
SELECT e.contact_id, e.event_id::text, s.claim, s.step, s.node_id, s.outcome, s.handle, s.cause, s.at
FROM automation_entries e
JOIN entry_steps s ON s.entry_id = e.id
WHERE e.automation_id = :automation AND e.created_at >= :since AND e.created_at < :until{{ macros.in_sample(sample, "e.contact_id") }}
