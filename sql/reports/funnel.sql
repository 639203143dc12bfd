-- Of the contacts that took the first step in the period, how many took the other steps after it, in order, within a time limit.
-- A contact counts at a step if any of its paths leads there. Of several first steps, the latest one before a step leaves the most time,
-- so that one is carried along. Every step of a path occurs after the previous one.
-- Events before a contact's earliest first step, or too long after its last one, are removed before anything is sorted.
{# One scan of all steps, without the join to the candidates, takes 0.7 of the CPU time if contacts take the first step often (page views before #}
{# deposits), but 1.7 times as much if they take it once (signups), and 5 times if few contacts take it: then it sorts events that count for nothing. #}
{% import "macros.sql" as macros %}
WITH {% if counted %}
counted AS (
    SELECT {{ "part, " if by }}step, event, contacts, seconds
    FROM {{ macros.records(counted, "steps", "part text, step integer, event text, contacts bigint, seconds float8") }}
{% else %}
candidates AS (
    SELECT contact_id, min(occurred_at) AS first, max(occurred_at) + CAST(:within AS interval) AS last
    FROM {{ macros.events(period) }}
    WHERE event = :step_1 AND {{ macros.during(period) }}
    GROUP BY contact_id
), steps_taken AS (
    SELECT e.contact_id, e.event, e.occurred_at, e.id{{ ", " ~ macros.property(by, dotted) ~ " AS part" if by }}
    FROM candidates f
    JOIN {{ macros.events(period, "e") }} ON e.contact_id = f.contact_id AND e.occurred_at BETWEEN f.first AND f.last
    {{ macros.join_group(by) }}
    WHERE e.event IN ({% for step in steps %}:step_{{ step }}{{ ", " if not loop.last }}{% endfor %})
        AND {{ macros.during(period, "e.") }}
), reached_1 AS (
    SELECT *, CASE WHEN event = :step_1 THEN occurred_at END AS since_1
    FROM steps_taken
){% for step in steps[1:] %}, reached_{{ step }} AS (
    SELECT *, CASE WHEN event = :step_{{ step }} AND occurred_at <= before_{{ step }} + CAST(:within AS interval)
              THEN before_{{ step }} END AS since_{{ step }}
    FROM (SELECT *, max(since_{{ step - 1 }}) OVER earlier AS before_{{ step }}
          FROM reached_{{ step - 1 }}
          WINDOW earlier AS (PARTITION BY contact_id{{ ", part" if by == "segment" }} ORDER BY occurred_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) w
){% endfor %}, per_contact AS (
    SELECT contact_id{% for step in steps %}, min(occurred_at - since_{{ step }}) AS took_{{ step }}{% endfor %}
        {{ ", part" if by == "segment" }}
        {{ ", (array_agg(part ORDER BY occurred_at, id) FILTER (WHERE event = :step_1))[1] AS part" if by and by != "segment" }}
    FROM reached_{{ steps[-1] }}
    GROUP BY contact_id{{ ", part" if by == "segment" }}
), counted AS (
    SELECT {{ "part, " if by }}s.*
    FROM (SELECT{{ " part," if by }}
              {% for step in steps %}
              count(took_{{ step }}) AS contacts_{{ step }}, percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM took_{{ step }})) AS seconds_{{ step }}{{ "," if not loop.last }}
              {% endfor %}
          FROM per_contact
          {{ "GROUP BY part" if by }}) t,
         LATERAL (VALUES {% for step in steps %}({{ step }}, :step_{{ step }}, contacts_{{ step }}, seconds_{{ step }}){{ ", " if not loop.last }}{% endfor %}) AS s (step, event, contacts, seconds)
{% endif %}
)
SELECT {{ "part, " if by }}step, event, contacts,
       contacts::float8 / nullif(first_value(contacts) OVER steps, 0) AS of_first,
       contacts::float8 / nullif(lag(contacts) OVER steps, 0) AS of_previous,
       CASE WHEN step > 1 THEN seconds END AS median_seconds
FROM counted
WINDOW steps AS ({{ "PARTITION BY part " if by }}ORDER BY step)
ORDER BY {{ "max(contacts) OVER (PARTITION BY part) DESC, part, " if by }}step
