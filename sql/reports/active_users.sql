-- How many contacts were active in each day, week or month: new ones (never active before, also before the period), and those active in the previous one.
-- :previous is the start of the day, week or month before the one that contains :since.
{% import "macros.sql" as macros %}
{% if counted %}
SELECT p.at, coalesce(t.contacts, 0) AS contacts, coalesce(t.new, 0) AS new, coalesce(t.stayed, 0) AS stayed, coalesce(t.events, 0) AS events,
       {{ macros.complete(period, "p.at") }} AS complete
FROM {{ macros.periods(period) }} AS p (at)
LEFT JOIN {{ macros.records(counted, "periods", "at timestamptz, contacts bigint, new bigint, stayed bigint, events bigint") }} ON t.at = p.at
WHERE p.at < {{ macros.until(period) }}
ORDER BY p.at
{% else %}
WITH active AS (
    SELECT contact_id, date_trunc(:every, occurred_at, 'UTC') AS at, count(*) FILTER (WHERE occurred_at >= {{ macros.since() }}) AS events
    FROM {{ macros.events(period) }}
    WHERE {{ "event = :event AND " if event }}{{ macros.during(period, begin="previous") }}
    GROUP BY 1, 2
), compared AS (
    SELECT *, lag(at) OVER (PARTITION BY contact_id ORDER BY at) AS before
    FROM active
{% if event %}
), earlier AS (
    SELECT DISTINCT contact_id
    FROM {{ macros.events(period) }}
    WHERE event = :event AND {{ macros.before() }}
{% endif %}
)
SELECT t.at, count(c.contact_id) AS contacts,
{% if event %}
       count(*) FILTER (WHERE c.contact_id IS NOT NULL AND c.before IS NULL AND e.contact_id IS NULL) AS new,
{% else %}
       -- One index lookup per contact of the period; the history of other contacts is not read.
       count(c.contact_id) FILTER (WHERE CASE WHEN c.before IS NULL THEN NOT EXISTS (
           SELECT FROM {{ macros.events(period, "b") }} WHERE b.contact_id = c.contact_id AND {{ macros.before("b.") }}) END) AS new,
{% endif %}
       count(*) FILTER (WHERE c.before = t.at - CAST('1 ' || :every AS interval)) AS stayed,
       coalesce(sum(c.events), 0)::bigint AS events,
       {{ macros.complete(period, "t.at") }} AS complete
FROM {{ macros.periods(period) }} AS t (at)
LEFT JOIN compared c ON c.at = t.at AND c.events > 0
{{ "LEFT JOIN earlier e ON e.contact_id = c.contact_id" if event }}
WHERE t.at < {{ macros.until(period) }}
GROUP BY t.at
ORDER BY t.at
{% endif %}
