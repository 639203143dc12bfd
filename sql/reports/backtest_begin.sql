-- The current time, and the number of contacts.
{% import "backtest_parts.sql" as parts %}
SELECT now() AS at, count(*) AS contacts
FROM contacts
WHERE erased_at IS NULL{{ parts.in_sample(sample, "id") }}
