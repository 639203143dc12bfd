{# Macros shared by the reports. They choose the structure of a query; its values are bound as :name when it runs. #}
{% macro since(name="since") %}
CAST(:{{ name }} AS timestamptz)
{%- endmacro %}
{% macro until(period) %}
{{ "CAST(:until AS timestamptz)" if period.until else "CAST(:now AS timestamptz)" if period.past else "now()" }}
{%- endmacro %}
{# Events, and the logs of chains that the report names. A log occurs at the time of its block; it may be received much later. #}
{# The payload is that of the view `events_logs`. #}
{% macro events(period, alias="") %}
{% if period.logs %}
(
        SELECT id, contact_id, event, occurred_at, created_at, payload FROM app_events
        UNION ALL
        SELECT id, contact_id, contract || ':' || lower(event), block_time, block_time,
               jsonb_build_object('chainId', chain_id, 'contract', contract, 'txHash', tx_hash, 'logIndex', log_index, 'blockNumber', block_number) || args
        FROM onchain_events
        WHERE contract = ANY (CAST(:contracts AS text[])) AND contact_id IS NOT NULL AND NOT removed AND contract || ':' || lower(event) = ANY (CAST(:logs AS text[]))
    ) {{ alias or "events" }}
{%- else %}
app_events{{ " " ~ alias if alias }}
{%- endif %}
{%- endmacro %}
{# Events that occurred in the period. `created_at` is at most 7 days after `occurred_at` and at most 5 minutes before it. #}
{# The bounds are values, not `now()`, because an expression of `now()` would be evaluated for every event. #}
{% macro during(period, events="", begin="since") %}
{{ events }}occurred_at >= {{ since(begin) }} AND {{ events }}created_at >= {{ since(begin) }} - interval '5 minutes'
{%- if period.until %}

        AND {{ events }}occurred_at < {{ until(period) }} AND {{ events }}created_at < {{ until(period) }} + interval '7 days'
{%- endif %}
{{- of_members(period, events) }}
{%- endmacro %}
{# Events that occurred before the period. #}
{% macro before(events="") %}
{{ events }}occurred_at < {{ since() }} AND {{ events }}created_at < {{ since() }} + interval '7 days'
{%- endmacro %}
{# Only events of current members of the segment, if one is given. #}
{% macro of_members(period, rows="") %}
{% if period.segment %}

        AND {{ rows }}contact_id IN (SELECT contact_id FROM segment_members WHERE segment = :{{ period.segment }})
{%- endif %}
{% endmacro %}
{# What is at a path, as text or JSON, as filters find it: a key with dots in its name comes before dots into objects. #}
{% macro at(path, payload, dotted, text=false) %}
{% set key, way = ("->>", "#>>") if text else ("->", "#>") %}
{{ "coalesce(" ~ payload ~ " " ~ key ~ " CAST(:" ~ path ~ "_key AS text), " if path in dotted }}{{ payload }} {{ way }} CAST(:{{ path }} AS text[]){{ ")" if path in dotted }}
{%- endmacro %}
{% macro property(of, dotted) %}
{{ "c.segment" if of == "segment" else at("by", "c.metadata" if of == "contact" else "e.payload", dotted, text=true) }}
{%- endmacro %}
{# The join that `property` needs for contacts and for segments. A contact is in the group of each of its segments. #}
{% macro join_group(by) %}
{{ " JOIN contacts c ON c.id = e.contact_id" if by == "contact" }}{{ " LEFT JOIN segment_members c ON c.contact_id = e.contact_id" if by == "segment" }}
{%- endmacro %}
{# Whether the day, week or month from `begin` is entirely in the period, and that in which its cohort began. #}
{% macro complete(period, begin, cohort=none) %}
{{ cohort or begin }} >= {{ since() }} AND {{ begin }} + CAST('1 ' || :every AS interval) <= {{ until(period) }}
{%- endmacro %}
{# The starts of the days, weeks or months of the period. #}
{% macro periods(period) %}
generate_series(date_trunc(:every, {{ since() }}, 'UTC'), {{ until(period) }}, CAST('1 ' || :every AS interval))
{%- endmacro %}
{# A number at a path. A number of 10^24 or more, or with a hundred decimals, is ignored: it is no amount, and does not fit into the types of the results. #}
{# OFFSET 0 keeps the lookup in one place; without it Postgres repeats it at each mention, which doubles the time of a report. #}
{% macro number(path, payload, dotted) %}
(SELECT CASE WHEN jsonb_typeof(n) = 'number' THEN CASE WHEN abs(n::numeric) < 1e24 AND scale(n::numeric) < 100 THEN n::numeric END END
 FROM (SELECT {{ at(path, payload, dotted) }} AS n OFFSET 0) lookup)
{%- endmacro %}
{# The contacts with their first :start, if it is in the period, by its day, week or month, and how many each cohort has. #}
{% macro cohorts(period, counted="") %}
{% if counted %}
cohorts AS (
    SELECT cohort, size FROM {{ records(counted, "cohorts", "cohort timestamptz, size bigint") }}
)
{%- else %}
members AS (
    SELECT e.contact_id, min(e.occurred_at) AS began, date_trunc(:every, min(e.occurred_at), 'UTC') AS cohort
    FROM {{ events(period, "e") }}
    WHERE e.event = :start AND {{ during(period, "e.") }}
        AND NOT EXISTS (SELECT FROM {{ events(period, "b") }} WHERE b.contact_id = e.contact_id AND b.event = :start AND {{ before("b.") }})
    GROUP BY e.contact_id
), cohorts AS (
    SELECT cohort, count(*) AS size
    FROM members
    GROUP BY cohort
)
{%- endif %}
{%- endmacro %}
{# What the kernels counted, instead of the events: a set of records of a report. #}
{% macro records(counted, name, columns) %}
jsonb_to_recordset(CAST(:{{ counted }} AS jsonb) -> '{{ name }}') AS t ({{ columns }})
{%- endmacro %}
