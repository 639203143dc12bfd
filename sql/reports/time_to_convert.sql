-- How long contacts took from their first :start in the period to the first :goal after it: the number of contacts within each span.
-- `share` is of all contacts that started; contacts that took longer than the longest span are in no row.
{% import "macros.sql" as macros %}
{% set contacts = "coalesce(sum(d.contacts), 0)::bigint" if counted else "count(d.contact_id)" %}
WITH {% if counted %}
durations AS (
    SELECT duration, contacts FROM {{ macros.records(counted, "durations", "duration interval, contacts bigint") }}
), {% else %}
starts AS (
    SELECT contact_id, min(occurred_at) AS at
    FROM {{ macros.events(period) }}
    WHERE event = :start AND {{ macros.during(period) }}
    GROUP BY contact_id
), durations AS (
    SELECT s.contact_id, min(e.occurred_at) - s.at AS duration
    FROM starts s
    LEFT JOIN {{ macros.events(period, "e") }} ON e.contact_id = s.contact_id AND e.event = :goal AND e.occurred_at > s.at
        AND e.occurred_at <= s.at + CAST(:within AS interval) AND {{ macros.during(period, "e.") }}
    GROUP BY s.contact_id, s.at
), {% endif %}
spans AS (
    SELECT span, coalesce(lag(span) OVER (ORDER BY span), interval '0') AS after
    FROM (SELECT unnest(CAST(:spans AS interval[])) AS span UNION SELECT CAST(:within AS interval)) AS all_spans
    WHERE span <= CAST(:within AS interval)
), all_starts AS (
    SELECT {{ "coalesce(sum(contacts), 0)::bigint" if counted else "count(*)" }} AS started FROM durations
)
SELECT extract(epoch FROM s.after)::float8 AS after_seconds, extract(epoch FROM s.span)::float8 AS within_seconds,
       {{ contacts }} AS contacts,
       ({{ contacts }})::float8 / nullif(max(a.started), 0) AS share,
       (sum({{ contacts }}) OVER (ORDER BY s.span))::float8 / nullif(max(a.started), 0) AS share_so_far
FROM spans s
CROSS JOIN all_starts a
LEFT JOIN durations d ON d.duration > s.after AND d.duration <= s.span
GROUP BY s.span, s.after
ORDER BY s.span
