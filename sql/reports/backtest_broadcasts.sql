-- The number of starts of broadcasts of this automation that were sent in the period.
{% import "backtest_parts.sql" as parts %}
SELECT count(*) AS starts
FROM (
    {{ parts.broadcast_starts() }}) b
