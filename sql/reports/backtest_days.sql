-- The number of events to read, by day.
{% import "backtest_parts.sql" as parts %}
SELECT date_trunc('day', created_at, 'UTC') AS day, count(*) AS events
FROM app_events
WHERE {{ parts.selected(selection, sample) }}
GROUP BY day
ORDER BY day
