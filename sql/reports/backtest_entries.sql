-- The entries of the automation that began in the period.
{% import "backtest_parts.sql" as parts %}
SELECT e.contact_id, e.event_id::text, e.automation_version AS version, e.state, e.outcome, e.created_at, e.updated_at
FROM automation_entries e
WHERE e.automation_id = :automation AND e.created_at >= :since AND e.created_at < :until{{ parts.in_sample(sample, "e.contact_id") }}
