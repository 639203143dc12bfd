-- The number of events, logs and starts to read, by hour.
{% import "backtest_macros.sql" as macros %}
SELECT date_trunc('hour', created_at, 'UTC') AS hour, count(*) AS events
FROM (
    {{ macros.rows(selection, sample, narrow=true) }}) e
GROUP BY hour
ORDER BY hour
