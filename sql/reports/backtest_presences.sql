-- The number of starts at the times of a schedule; contacts that were merged since are counted twice.
{% import "backtest_parts.sql" as parts %}
SELECT coalesce(sum(last - first), 0)::bigint AS starts
FROM (
    {{ parts.presences(start) }}) p
WHERE true{{ parts.in_sample(sample, "p.contact_id") }}
