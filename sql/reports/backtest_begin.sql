-- The current time, and the number of contacts.
{% import "backtest_macros.sql" as macros %}
SELECT now() AS at, count(*) AS contacts
FROM contacts
WHERE erased_at IS NULL{{ macros.in_sample(sample, "id") }}
