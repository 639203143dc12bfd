-- The number of starts at the times of a schedule; contacts that were merged since are counted twice.
{% import "backtest_macros.sql" as macros %}
SELECT coalesce(sum(last - first), 0)::bigint AS starts
FROM (
    {{ macros.presences(start) }}) p
WHERE true{{ macros.in_sample(sample, "p.contact_id") }}
