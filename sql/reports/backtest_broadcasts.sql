-- The number of starts of broadcasts of this automation that were sent in the period.
{% import "backtest_macros.sql" as macros %}
SELECT count(*) AS starts
FROM (
    {{ macros.broadcast_starts() }}) b
