-- The entries of the automation that began in the period, with a row for each step, in any order. Those of erased contacts cannot be
-- compared, because their events are not played, and those from before the first publication did nothing.
{% import "backtest_macros.sql" as macros %}
SELECT e.contact_id, e.event_id::text, e.automation_version AS version, e.state, e.outcome, e.created_at, e.updated_at,
       s.claim, s.step, s.node_id, s.outcome AS step_outcome, s.handle, s.cause, s.at
FROM automation_entries e
LEFT JOIN entry_steps s ON s.entry_id = e.id
WHERE e.automation_id = :automation AND e.created_at >= :since AND e.created_at < :until
    AND e.outcome IS DISTINCT FROM 'no_published_version'
    AND NOT EXISTS (SELECT 1 FROM contacts c WHERE c.id = e.contact_id AND c.erased_at IS NOT NULL){{ macros.in_sample(sample, "e.contact_id") }}
