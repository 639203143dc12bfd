-- What contacts do after {{ "their first :start" if start else "their first event" }} in the period: the most frequent paths of a few steps, within a time limit. A repeated step counts once.
{% import "macros.sql" as macros %}
WITH {% if counted %}
counted AS (
    SELECT path, contacts, started FROM {{ macros.records(counted, "paths", "path text[], contacts bigint, started bigint") }}
{% else %}
firsts AS (
    SELECT DISTINCT ON (contact_id) contact_id, occurred_at, id
    FROM {{ macros.events(period) }}
    WHERE {{ "event = :start AND " if start }}{{ macros.during(period) }}
    ORDER BY contact_id, occurred_at, id
), followed AS (
    SELECT e.contact_id, e.event, e.occurred_at, e.id,
           lag(e.event) OVER (PARTITION BY e.contact_id ORDER BY e.occurred_at, e.id) AS before
    FROM firsts f
    JOIN {{ macros.events(period, "e") }} ON e.contact_id = f.contact_id
    WHERE (e.occurred_at, e.id) >= (f.occurred_at, f.id) AND e.occurred_at <= f.occurred_at + CAST(:within AS interval)
        AND {{ macros.during(period, "e.") }}
), numbered AS (
    SELECT contact_id, event, row_number() OVER (PARTITION BY contact_id ORDER BY occurred_at, id) AS number
    FROM followed
    WHERE before IS DISTINCT FROM event
), paths AS (
    SELECT contact_id, array_agg(event ORDER BY number) AS path
    FROM numbered
    WHERE number <= :steps
    GROUP BY contact_id
), counted AS (
    SELECT path, count(*) AS contacts, sum(count(*)) OVER () AS started
    FROM paths
    GROUP BY path
{% endif %}
)
SELECT path, contacts, contacts::float8 / started AS share
FROM counted
ORDER BY contacts DESC, path
LIMIT :limit
