-- The number of events and logs to read, by day.
{% import "backtest_parts.sql" as parts %}
SELECT date_trunc('day', created_at, 'UTC') AS day, count(*) AS events
FROM (
    {{ parts.rows(selection, sample, narrow=true) }}) e
GROUP BY day
ORDER BY day
