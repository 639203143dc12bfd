-- What time it is, and how many contacts there are.
{% import "backtest_parts.sql" as parts %}
SELECT now() AS at, count(*) AS contacts
FROM contacts
WHERE erased_at IS NULL{{ parts.chosen(whom, "id") }}
