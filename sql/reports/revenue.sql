-- The sum of a number in an event{{ ", by day, week or month" if every }}{{ ", by a property" if by }}. Events without that number are only counted.
-- Of 5 and 5.0, max() returns the one that is read last, hence trim_scale.
{% import "macros.sql" as macros %}
{% if counted %}
SELECT {% if every %}at, {{ macros.complete(period, "at") }} AS complete,
       {% endif %}{{ "part, " if by }}events, contacts, total, (total / nullif(numbers, 0))::float8 AS mean, median, trim_scale(largest) AS largest
FROM {{ macros.records(counted, "totals", "at timestamptz, part text, events bigint, contacts bigint, numbers bigint, total numeric, median float8, largest numeric") }}
{% else %}
SELECT {% if every %}date_trunc(:every, e.occurred_at, 'UTC') AS at, {{ macros.complete(period, "date_trunc(:every, e.occurred_at, 'UTC')") }} AS complete,
       {% endif %}{{ macros.property(by, dotted) ~ " AS part, " if by }}count(*) AS events, count(DISTINCT e.contact_id) AS contacts,
       sum(v.value) AS total, avg(v.value)::float8 AS mean,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY v.value::float8) AS median, trim_scale(max(v.value)) AS largest
FROM {{ macros.events(period, "e") }}{{ macros.join_group(by) }}
CROSS JOIN LATERAL (SELECT {{ macros.number("value", "e.payload", dotted) }} AS value OFFSET 0) v
WHERE e.event = :event AND {{ macros.during(period, "e.") }}
{% if every %}
GROUP BY at, complete{{ ", part" if by }}
{% elif by %}
GROUP BY 1
{% endif %}
{% endif %}
{% if every %}
ORDER BY at{{ ", total DESC NULLS LAST, part" if by }}
{% elif by %}
ORDER BY total DESC NULLS LAST, part
{% endif %}
