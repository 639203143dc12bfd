-- What contacts did after their first :start in the period, by its day, week or month: events, and the sum of a number in them.
-- `per_contact` divides by all contacts of the cohort, also those without events; `so_far` is the running sum.
{% import "macros.sql" as macros %}
WITH {{ macros.cohorts(period, counted) }}, totals AS (
{% if counted %}
    SELECT cohort, at, events, total
    FROM {{ macros.records(counted, "totals", "cohort timestamptz, at timestamptz, events bigint, total numeric") }}
{% else %}
    SELECT p.cohort, date_trunc(:every, e.occurred_at, 'UTC') AS at, count(*) AS events,
           {{ "sum(" ~ macros.number("value", "e.payload", dotted) ~ ")" if value else "count(*)" }} AS total
    FROM members p
    JOIN {{ macros.events(period, "e") }} ON e.contact_id = p.contact_id
    WHERE e.event = :event AND e.occurred_at >= p.began AND {{ macros.during(period, "e.") }}
    GROUP BY 1, 2
{% endif %}
)
SELECT c.cohort, c.size, n AS number, coalesce(t.events, 0) AS events, coalesce(t.total, 0)::float8 AS total,
       coalesce(t.total, 0)::float8 / c.size AS per_contact,
       (sum(coalesce(t.total, 0)) OVER (PARTITION BY c.cohort ORDER BY n))::float8 / c.size AS so_far,
       {{ macros.complete(period, "c.cohort + n * CAST('1 ' || :every AS interval)", "c.cohort") }} AS complete
FROM cohorts c
CROSS JOIN generate_series(0, :periods) AS n
LEFT JOIN totals t ON t.cohort = c.cohort AND t.at = c.cohort + n * CAST('1 ' || :every AS interval)
WHERE c.cohort + n * CAST('1 ' || :every AS interval) < {{ macros.until(period) }}
ORDER BY c.cohort, n
