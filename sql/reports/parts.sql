{# What the reports have in common. Structure is decided here; values are bound as :name by whoever runs the query. #}
{% macro since() %}
CAST(:since AS timestamptz)
{%- endmacro %}
{% macro until(period) %}
{{ "CAST(:until AS timestamptz)" if period.until else "CAST(:now AS timestamptz)" if period.past else "now()" }}
{%- endmacro %}
{# Events that occurred in the period. They are stored by `created_at`, which lies at most 7 days after and 5 minutes before. #}
{# Its ends are values, not `now()`: an expression of it is worked out again for every event. #}
{% macro during(period, events="") %}
{{ events }}occurred_at >= {{ since() }} AND {{ events }}created_at >= {{ since() }} - interval '5 minutes'
{%- if period.until %}

        AND {{ events }}occurred_at < {{ until(period) }} AND {{ events }}created_at < {{ until(period) }} + interval '7 days'
{%- endif %}
{{- of_members(period, events) }}
{%- endmacro %}
{# Only of those who are in the segment now, if one is given. #}
{% macro of_members(period, rows="") %}
{% if period.segment %}

        AND {{ rows }}contact_id IN (SELECT contact_id FROM segment_members WHERE segment = :segment)
{%- endif %}
{% endmacro %}
{% macro property(of, events="e.", contacts="c.") %}
{{ contacts ~ "metadata" if of == "contact" else events ~ "payload" }} #>> CAST(:by AS text[])
{%- endmacro %}
{% macro number(path, payload="payload") %}
CASE WHEN jsonb_typeof({{ payload }} #> CAST({{ path }} AS text[])) = 'number' THEN ({{ payload }} #>> CAST({{ path }} AS text[]))::numeric END
{%- endmacro %}
{# Who began in the period, and in which day, week or month; how many they were in each. #}
{% macro cohorts(period) %}
people AS (
    SELECT contact_id, min(occurred_at) AS began, date_trunc(:every, min(occurred_at), 'UTC') AS cohort
    FROM app_events
    WHERE event = :start AND {{ during(period) }}
    GROUP BY contact_id
), cohorts AS (
    SELECT cohort, count(*) AS size
    FROM people
    GROUP BY cohort
)
{%- endmacro %}
