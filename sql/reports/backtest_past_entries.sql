-- For contacts with entries of the automation from before the period: when the latest was made, when the last one ended, and
-- whether one is open. Entries that were not admitted do not count.
{% import "backtest_macros.sql" as macros %}
SELECT e.contact_id, max(e.created_at) AS entered_at, max(e.updated_at) AS ended_at,
       bool_or(e.state NOT IN ('completed', 'exited', 'cancelled', 'dead')) AS is_open, coalesce(e.merged_from, e.contact_id) AS member_id
FROM automation_entries e
WHERE e.automation_id = :automation AND e.created_at < :since
    AND coalesce(e.outcome, '') NOT IN ('reentry', 'loop_guard', 'joined', 'no_published_version'){{ macros.in_sample(sample, "e.contact_id") }}
GROUP BY e.contact_id, member_id
