-- Of the contacts with their first :start in a day, week or month of the period, how many returned in each later one.
-- Number 0 is the cohort's own period; periods that have not begun are left out, and the first cohort and the last period may be incomplete.
{% import "macros.sql" as macros %}
WITH {{ macros.cohorts(period, counted) }}, {% if counted %}
returned AS (
    SELECT cohort, at, contacts FROM {{ macros.records(counted, "returned", "cohort timestamptz, at timestamptz, contacts bigint") }}
{% else %}
later_events AS (
    SELECT contact_id, date_trunc(:every, occurred_at, 'UTC') AS at, max(occurred_at) AS last
    FROM {{ macros.events(period) }}
    WHERE {{ "event = :back AND " if back }}{{ macros.during(period) }}
    GROUP BY 1, 2
), returned AS (
    SELECT p.cohort, e.at, count(*) AS contacts
    FROM members p
    JOIN later_events e ON e.contact_id = p.contact_id AND e.last >= p.began
    GROUP BY p.cohort, e.at
{% endif %}
)
SELECT c.cohort, c.size, n AS number, coalesce(r.contacts, 0) AS contacts, coalesce(r.contacts, 0)::float8 / c.size AS share,
       {{ macros.complete(period, "c.cohort + n * CAST('1 ' || :every AS interval)", "c.cohort") }} AS complete
FROM cohorts c
CROSS JOIN generate_series(0, :periods) AS n
LEFT JOIN returned r ON r.cohort = c.cohort AND r.at = c.cohort + n * CAST('1 ' || :every AS interval)
WHERE c.cohort + n * CAST('1 ' || :every AS interval) < {{ macros.until(period) }}
ORDER BY c.cohort, n
