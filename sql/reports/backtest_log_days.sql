-- The number of logs to read, by day.
{% import "backtest_parts.sql" as parts %}
SELECT date_trunc('day', l.created_at, 'UTC') AS day, count(*) AS events
FROM (
    {{ parts.logs(selection, sample) }}) l
GROUP BY day
ORDER BY day
