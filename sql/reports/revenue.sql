-- The sum of a number in an event{{ ", by a property" if by }}. Events without that number are only counted.
{% import "parts.sql" as parts %}
SELECT {{ parts.property(by, dotted) ~ " AS part, " if by }}count(*) AS events, count(DISTINCT e.contact_id) AS contacts,
       sum(v.value) AS total, avg(v.value)::float8 AS mean,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY v.value::float8) AS median, max(v.value) AS largest
FROM app_events e{{ parts.join_group(by) }}
CROSS JOIN LATERAL (SELECT {{ parts.number("value", "e.payload", dotted) }} AS value OFFSET 0) v
WHERE e.event = :event AND {{ parts.during(period, "e.") }}
{% if by %}
GROUP BY 1
ORDER BY total DESC NULLS LAST, part
{% endif %}
