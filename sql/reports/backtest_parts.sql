{# Macros of the queries of a backtest. They only pre-select: the interpreter decides on every event that is read. #}
{# The contacts of a sample: a share by a hash of the id, so always the same ones, and current members of a segment. #}
{% macro in_sample(sample, contact) %}
{% if sample.is_partial %} AND ('x' || left(encode(sha256({{ contact }}::text::bytea), 'hex'), 8))::bit(32)::bigint < :sampled{% endif %}
{%- if sample.segment is not none %} AND {{ contact }} IN (SELECT contact_id FROM segment_members WHERE segment = :segment){% endif %}
{%- endmacro %}
{# Events of the period that may start, wake or end an entry: by name, and by values in the filters of triggers. #}
{% macro selected(selection, sample) %}
created_at >= :since AND created_at < :until
    {%- if selection.names %} AND event = ANY (:{{ selection.names }}){% endif %}
    {%- if selection.patterns %}

    AND ({% for pattern in selection.patterns %}{{ " OR " if not loop.first }}(event = ANY (:{{ pattern.names }})
    {%- for alternatives in pattern.conditions %} AND ({% for value in alternatives %}{{ " OR " if not loop.first }}payload @> :{{ value }}{% endfor %}){% endfor %})
    {%- endfor %})
    {%- endif %}

    {{- in_sample(sample, "contact_id") }}
{%- endmacro %}
{# An email address, or a placeholder if no step uses it: decrypting addresses costs the server more than everything else. #}
{% macro address(selection, column) %}
{{ column if selection.addresses else "CASE WHEN " ~ column ~ " IS NOT NULL THEN '•••@•••' END" }}
{%- endmacro %}
{# Events and logs of the period that an automation may need; `narrow`: only their contacts and times. #}
{% macro rows(selection, sample, narrow=false) %}
{% if selection.custom_events %}
SELECT contact_id, created_at{% if not narrow %}, id, event, payload, sent_wallet_address,
       {{ address(selection, "sent_email") }} AS sent_email, sent_external_id, NULL::text AS source{% endif %}

FROM app_events
WHERE {{ selected(selection, sample) }}
{{ "UNION ALL" if selection.logs }}
{% endif %}
{{ logs(selection, sample, narrow) if selection.logs }}
{%- endmacro %}
{# Logs of the period: those that may start an entry, for the contact of their wallet, and those that a step may wait for. #}
{# Those that start one are named by the contract's event, the others as waits name them. #}
{% macro logs(selection, sample, narrow) %}
{% set in_period = "o.created_at >= :since AND o.created_at < :until AND NOT o.removed" %}
{% for number in range(selection.log_sources) %}
SELECT c.id AS contact_id, o.created_at{% if not narrow %}, o.id, o.event, {{ location() }} || jsonb_build_object('args', o.args) AS payload,
       c.wallet_address AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, :key_{{ number }}::text AS source{% endif %}

FROM onchain_events o JOIN contacts c ON c.wallet_address = o.args ->> :wallet_{{ number }}
WHERE {{ in_period }}
    AND o.chain_id = :chain_{{ number }} AND o.contract = :contract_{{ number }} AND o.signature = :signature_{{ number }}
    AND c.wallet_address <> :zero_address
    {{- in_sample(sample, "c.id") }}
UNION ALL
{% endfor %}
SELECT o.contact_id, o.created_at{% if not narrow %}, o.id, o.contract || ':' || lower(o.event) AS event, {{ location() }} || o.args AS payload,
       NULL::text AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, NULL::text AS source{% endif %}

FROM onchain_events o
WHERE {{ in_period }}
    AND o.contact_id IS NOT NULL AND o.contract || ':' || lower(o.event) = ANY (:awaited::text[])
    {{- in_sample(sample, "o.contact_id") }}
{%- endmacro %}
{# The location of a log, as filters see it. #}
{% macro location() %}
jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex', o.log_index, 'blockNumber', o.block_number)
{%- endmacro %}
