{# What the questions of a backtest have in common. They only pre-select: the interpreter decides on every event that is read. #}
{# The contacts of a sample, by a hash of the contact, so always the same; and those who are in a segment now. #}
{% macro chosen(whom, contact) %}
{% if whom.sampled %} AND ('x' || left(encode(sha256({{ contact }}::text::bytea), 'hex'), 8))::bit(32)::bigint < :sampled{% endif %}
{%- if whom.segment is not none %} AND {{ contact }} IN (SELECT contact_id FROM segment_members WHERE segment = :segment){% endif %}
{%- endmacro %}
{# Events stored in the period that may start, wake or end an entry: by name, and by values that a trigger asks for. #}
{% macro wanted(selection, whom) %}
created_at >= :since AND created_at < :until
    {%- if selection.names %} AND event = ANY (:{{ selection.names }}){% endif %}
    {%- if selection.ways %}

    AND ({% for way in selection.ways %}{{ " OR " if not loop.first }}(event = ANY (:{{ way.names }})
    {%- for alternatives in way.asked %} AND ({% for value in alternatives %}{{ " OR " if not loop.first }}payload @> :{{ value }}{% endfor %}){% endfor %})
    {%- endfor %})
    {%- endif %}

    {{- chosen(whom, "contact_id") }}
{%- endmacro %}
{# An email address; only that there is one, where nobody looks at it: opening addresses costs the server more than all else. #}
{% macro address(selection, column) %}
{{ column if selection.addresses else "CASE WHEN " ~ column ~ " IS NOT NULL THEN '•••@•••' END" }}
{%- endmacro %}
