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
{# A value in the history of a contact, as JSON text; of an email as `address`. #}
{% macro change(selection, column) %}
{{ column ~ "::text" if selection.addresses else "CASE WHEN k.field = 'email' AND " ~ column ~ " IS NOT NULL THEN '\"•••@•••\"' ELSE " ~ column ~ "::text END" }}
{%- endmacro %}
{# Events, logs and starts of the period that an automation may need; `narrow`: only their contacts and times; `live`: with those that were #}
{# imported, whose two times are the same. #}
{% macro rows(selection, sample, narrow=false, live=false) %}
{% if selection.custom_events %}
SELECT contact_id, created_at{% if not narrow %}, id, event, payload, sent_wallet_address,
       {{ address(selection, "sent_email") }} AS sent_email, sent_external_id, NULL::text AS source,
       merged_from AS member_id, {{ "occurred_at = created_at" if live else "false" }} AS imported{% endif %}

FROM app_events
WHERE {{ selected(selection, sample) }}
{{ "UNION ALL" if selection.logs }}
{% endif %}
{{ logs(selection, sample, narrow) if selection.logs }}
{% for start in selection.starts %}
{{ "UNION ALL" if selection.custom_events or selection.logs or not loop.first }}
{{ starts(start, sample, narrow) }}
{% endfor %}
{%- endmacro %}
{# Starts of the period, of a contact once at each time; contacts that were merged since are members of one. A start that was not stored #}
{# gets an id like those of the engine: its time, and a hash. #}
{% macro starts(start, sample, narrow) %}
SELECT s.contact_id, s.at AS created_at{% if not narrow %},
       coalesce(s.start_id, (regexp_replace(lpad(to_hex((date_part('epoch', s.at) * 1000)::bigint), 12, '0'), '(.{8})(.{4})', '\1-\2-7')
           || regexp_replace(md5({{ start.param("key") }} || s.member_id::text || s.at::text), '(.{3})(.{3})(.{12}).*', '\1-8\2-\3'))::uuid) AS id,
       {{ start.param("type") }}::text AS event, jsonb_build_object('args', jsonb_strip_nulls(jsonb_build_object('segment', s.segment))) AS payload,
       NULL::text AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, {{ start.param("key") }}::text AS source,
       s.member_id, false AS imported{% endif %}

FROM (
    {{ "SELECT DISTINCT ON (member_id, at) * FROM (" if not narrow }}
    {% if start.kind == "changes" %}
    {{ segment_changes(start, narrow) }}
    {% elif start.kind == "times" %}
    {{ scheduled_starts(start, narrow) }}
    {% else %}
    {{ broadcast_starts() }}
    {% endif %}
    {{ ") any_start ORDER BY member_id, at, start_id" if not narrow }}) s
WHERE true{{ in_sample(sample, "s.contact_id") }}
{%- endmacro %}
{# Contacts that entered or left a segment at a refresh, with the start that the engine stored if an automation took entries from it. #}
{# Merges and deletions change members, too, and start nothing. #}
{% macro segment_changes(start, narrow) %}
SELECT k.contact_id, k.at, {{ start.param("segment") }}::text AS segment{% if not narrow %}, e.event_id AS start_id, k.member_id{% endif %}

FROM (
    SELECT coalesce(m.keep_id, k.contact_id) AS contact_id, k.contact_id AS member_id, k.changed_at AS at
    FROM contact_changes k LEFT JOIN ({{ kept_contacts() }}) m ON m.contact_id = k.contact_id
    WHERE k.field = 'segments.' || {{ start.param("segment") }} AND k.cause = 'refresh' AND k.new = '{{ "true" if start.source.type == "segment_entered" else "false" }}'
        AND k.changed_at >= :since AND k.changed_at < :until) k
{%- if not narrow %}

LEFT JOIN automation_entries e ON e.contact_id = k.contact_id AND coalesce(e.merged_from, e.contact_id) = k.member_id
    AND e.created_at = k.at AND e.created_at >= :since AND e.created_at < :until
{%- endif %}
{%- endmacro %}
{# The contacts at each of some times, of a segment if the start names one: since when until when each was one of them, then which of #}
{# the times (`first` and `last` are positions) lie between. Starts of a run that happened have their own ids and moments. #}
{% macro scheduled_starts(start, narrow) %}
SELECT r.contact_id, {{ "coalesce(e.created_at, r.at)" if start.own and not narrow else "r.at" }} AS at,
       {{ start.param("segment") if start.segment else "NULL" }}::text AS segment
    {%- if not narrow %}, {{ "e.event_id" if start.own else "NULL::uuid" }} AS start_id, r.member_id{% endif %}

FROM (
    SELECT contact_id, member_id, unnest(({{ start.param("times") }}::timestamptz[])[first + 1 : last]) AS at
    FROM ({{ presences(start) }}) p) r
{%- if start.own and not narrow %}

LEFT JOIN (
    SELECT coalesce(e.merged_from, e.contact_id) AS member_id, b.at, e.event_id, e.created_at
    FROM broadcasts b JOIN automation_entries e ON e.automation_id = b.automation_id AND left(e.event_id::text, 24) = left(b.id::text, 24)
    WHERE b.automation_id = :automation AND b.scheduled AND b.at >= :since AND b.at < :until) e ON e.member_id = r.member_id AND e.at = r.at
{%- endif %}
{%- endmacro %}
{% macro presences(start) %}
SELECT coalesce(m.keep_id, p.contact_id) AS contact_id, p.contact_id AS member_id, width_bucket(p.at - interval '1 microsecond', {{ start.param("times") }}::timestamptz[]) AS first,
       width_bucket(p.until - interval '1 microsecond', {{ start.param("times") }}::timestamptz[]) AS last
FROM (
    SELECT contact_id, at, is_present, least(lead(at) OVER (PARTITION BY contact_id ORDER BY at), :until) AS until
    FROM (
        {% if start.segment %}
        SELECT id AS contact_id, :since::timestamptz AS at, true AS is_present FROM contacts_at(:since) WHERE {{ start.param("segment") }} = ANY (segments)
        UNION ALL
        SELECT contact_id, changed_at, new = 'true' FROM contact_changes
        WHERE field = 'segments.' || {{ start.param("segment") }} AND changed_at > :since AND changed_at < :until
        {%- else %}
        SELECT id AS contact_id, :since::timestamptz AS at, true AS is_present FROM contacts_at(:since)
        UNION ALL
        SELECT id, created_at, true FROM contacts WHERE created_at > :since AND created_at < :until AND erased_at IS NULL
        UNION ALL    -- merged, or separated again
        SELECT contact_id, changed_at, new IS NULL FROM contact_changes
        WHERE field = 'mergedInto' AND changed_at > :since AND changed_at < :until
        {%- endif %}) c) p
LEFT JOIN ({{ kept_contacts() }}) m ON m.contact_id = p.contact_id
WHERE p.is_present
{%- endmacro %}
{# The starts of broadcasts of this automation that were sent. #}
{% macro broadcast_starts() %}
SELECT e.contact_id, e.created_at AS at, b.segment, e.event_id AS start_id, coalesce(e.merged_from, e.contact_id) AS member_id
FROM broadcasts b JOIN automation_entries e ON e.automation_id = b.automation_id AND left(e.event_id::text, 24) = left(b.id::text, 24)
WHERE b.automation_id = :automation AND NOT b.scheduled AND e.created_at >= :since AND e.created_at < :until
{%- endmacro %}
{# Merged contacts, and the contact that each is part of today. #}
{% macro kept_contacts() %}
SELECT DISTINCT ON (contact_id) contact_id, (new #>> '{}')::uuid AS keep_id FROM contact_changes WHERE field = 'mergedInto' ORDER BY contact_id, changed_at DESC
{%- endmacro %}
{# Merges since the beginning of the period, with the contact that each absorbed contact is part of today, which is itself after an undo. #}
{# Contacts that had been merged into the absorbed one before have a change, too, but were not separate then. #}
{% macro merges() %}
SELECT contact_id AS member_id, (new #>> '{}')::uuid AS into_id, changed_at AS at, cause_id::text AS merge_id,
       coalesce((latest #>> '{}')::uuid, contact_id) AS contact_id, undone_at
FROM (
    SELECT *, max(changed_at) FILTER (WHERE new IS NULL) OVER (PARTITION BY contact_id, cause_id) AS undone_at,
           last_value(new) OVER (PARTITION BY contact_id ORDER BY changed_at ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS latest
    FROM contact_changes WHERE field = 'mergedInto' AND changed_at >= :since) k
WHERE old IS NULL AND new IS NOT NULL
{%- endmacro %}
{# The contacts that are part of another one today. #}
{% macro absorbed() %}
SELECT DISTINCT member_id, contact_id FROM ({{ merges() }}) m WHERE member_id <> contact_id
{%- endmacro %}
{# The contacts with rows, and those that are one with another contact, whose rows may not have moved yet, or were until the undo. #}
{% macro contacts(selection, sample, merged) %}
SELECT contact_id FROM (
    {{ rows(selection, sample, narrow=true) }}) e
{%- if merged %}

    UNION ALL
    SELECT unnest(ARRAY[u.contact_id, coalesce(s.keep_id, u.into_id)])
    FROM ({{ merges() }}) u LEFT JOIN ({{ kept_contacts() }}) s ON s.contact_id = u.into_id
{%- endif %}
{%- endmacro %}
{# Logs of the period: those that may start an entry, for the contact of their wallet, and those that a step may wait for. #}
{# Those that start one are named by the contract's event, the others as waits name them. #}
{% macro logs(selection, sample, narrow) %}
{% set in_period = "o.created_at >= :since AND o.created_at < :until AND NOT o.removed" %}
{% for number in range(selection.log_sources) %}
SELECT c.id AS contact_id, o.created_at{% if not narrow %}, o.id, o.event, {{ location() }} || jsonb_build_object('args', o.args) AS payload,
       c.wallet_address AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, :key_{{ number }}::text AS source,
       NULL::uuid AS member_id, false AS imported{% endif %}

FROM onchain_events o JOIN contacts c ON c.wallet_address = o.args ->> :wallet_{{ number }}
WHERE {{ in_period }}
    AND o.chain_id = :chain_{{ number }} AND o.contract = :contract_{{ number }} AND o.signature = :signature_{{ number }}
    AND c.wallet_address <> :zero_address
    {{- in_sample(sample, "c.id") }}
UNION ALL
{% endfor %}
SELECT o.contact_id, o.created_at{% if not narrow %}, o.id, o.contract || ':' || lower(o.event) AS event, {{ location() }} || o.args AS payload,
       NULL::text AS sent_wallet_address, NULL::text AS sent_email, NULL::text AS sent_external_id, NULL::text AS source,
       NULL::uuid AS member_id, false AS imported{% endif %}

FROM onchain_events o
WHERE {{ in_period }}
    AND o.contact_id IS NOT NULL AND o.contract || ':' || lower(o.event) = ANY (:awaited::text[])
    {{- in_sample(sample, "o.contact_id") }}
{%- endmacro %}
{# The location of a log, as filters see it. #}
{% macro location() %}
jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex', o.log_index, 'blockNumber', o.block_number)
{%- endmacro %}
