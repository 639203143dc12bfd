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
{# Logs seen in the period: those that may start an entry, for the contact of their wallet, and those that somebody may wait for. #}
{% macro logs(selection, whom) %}
{% set seen = "o.created_at >= :since AND o.created_at < :until AND NOT o.removed" %}
{% for start in selection.logs.starts %}
SELECT c.id AS contact_id, o.created_at, o.id, o.event, {{ place() }} || jsonb_build_object('args', o.args) AS payload,
       c.wallet_address AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, :{{ start.key }}::text AS source
FROM onchain_events o JOIN contacts c ON c.wallet_address = o.args ->> :{{ start.wallet }}
WHERE {{ seen }}
    AND o.chain_id = :{{ start.chain }} AND o.contract = :{{ start.contract }} AND o.signature = :{{ start.signature }}
    AND c.wallet_address <> :nobody
    {{- chosen(whom, "c.id") }}
UNION ALL
{% endfor %}
SELECT o.contact_id, o.created_at, o.id, o.contract || ':' || lower(o.event), {{ place() }} || o.args,
       NULL::text, NULL::text, NULL::text, NULL::text
FROM onchain_events o
WHERE {{ seen }}
    AND o.contact_id IS NOT NULL AND o.contract || ':' || lower(o.event) = ANY (:awaited::text[])
    {{- chosen(whom, "o.contact_id") }}
{%- endmacro %}
{# Where a log was, as filters see it. #}
{% macro place() %}
jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex', o.log_index, 'blockNumber', o.block_number)
{%- endmacro %}
