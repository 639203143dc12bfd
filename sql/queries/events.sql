-- Events: storing them, counting them, and showing them in the catalog and the live tail.

-- Ingest: triggers of automations ----------------------------------------------------------------------------------
-- Ingest caches the triggers of organizations. It compares epochs in its own transaction, so a cached trigger is
-- never stale.

-- read_epochs --
-- The epochs of some organizations (no row for one that never had an automation), and the moments up to which their
-- events are counted and closed (see Counting). One statement for both, because another one would cost each batch
-- 0.05 ms.
SELECT org_id, epoch, NULL::timestamptz, NULL::timestamptz FROM automation_epochs WHERE org_id = ANY(:org_ids ::bigint[])
UNION ALL
SELECT org_id, NULL, counted_until, closed_until FROM event_counting WHERE org_id = ANY(:org_ids ::bigint[]);

-- list_active_automations --
-- The automations that take entries now, with the trigger of the published version, or of the draft if none is published: those
-- that start from one type of change of a segment, or, without a type, all but those that start from logs, which belong to the
-- followers of chains (chain.chain_automations).
SELECT a.org_id, a.id::text, a.published_version, a.activation, COALESCE(v.trigger_spec, a.trigger_spec) AS trigger_spec,
       COALESCE(a.live_since, a.created_at) AS live_since
FROM automations a
LEFT JOIN automation_versions v
    ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.active AND a.paused_at IS NULL AND a.archived_at IS NULL
    AND CASE WHEN :start_type ::text IS NULL THEN COALESCE(v.trigger_spec, a.trigger_spec) ->> 'type' IS DISTINCT FROM 'onchain_event'
        ELSE COALESCE(v.trigger_spec, a.trigger_spec) @> jsonb_build_object('type', :start_type ::text, 'segment', :segment ::text) END
ORDER BY a.id;

-- find_awaited_events --
-- The events, and keys of the attributes, that entries of any version of the active automations can wait for.
SELECT DISTINCT awaited.event
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id
CROSS JOIN LATERAL unnest(v.awaits) AS awaited (event)
WHERE a.org_id = :org_id AND a.active AND a.archived_at IS NULL;

-- Ingest: idempotency keys -----------------------------------------------------------------------------------------

-- claim_keys --
-- Claim idempotency keys in the given order (the caller sorts them).
INSERT INTO idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)
SELECT org_id, key_digest, event_id, body_digest, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[], :event_ids ::uuid[], :body_digests ::uuid[])
    AS k (org_id, key_digest, event_id, body_digest)
ON CONFLICT (org_id, key_digest) DO NOTHING;

-- find_key_holders --
-- The events that hold these idempotency keys, with the digests of their bodies; `position` counts from 0.
SELECT k.position - 1, i.event_id, replace(i.body_digest::text, '-', '') AS body_digest
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[]) WITH ORDINALITY AS k (org_id, key_digest, position)
JOIN idempotency_keys i ON i.org_id = k.org_id AND i.key_digest = k.key_digest;

-- add_mismatches --
-- Record keys that were sent again with another body.
INSERT INTO idempotency_mismatches (org_id, id, event_id, created_at)
SELECT org_id, id, event_id, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :event_ids ::uuid[]) AS m (org_id, id, event_id)
RETURNING true;

-- Ingest: contacts -------------------------------------------------------------------------------------------------

-- find_owners --
-- The contacts that own these identifiers, and whether they already have these attributes; `position` counts from 0.
SELECT k.position - 1 AS position, c.id AS contact_id, c.wallet_address AS wallet, c.email, c.external_id,
       coalesce(c.attributes @> k.attributes::jsonb, true) AS has_attributes
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], string_to_array(:attributes, chr(30), ''))
    WITH ORDINALITY AS k (org_id, kind, digest, attributes, position)
JOIN identities i ON i.org_id = k.org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = i.org_id AND c.id = i.contact_id;

-- add_contacts --
-- Insert new contacts; moments are microseconds since the epoch. `updated_us`: of contacts that an import creates.
INSERT INTO contacts (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_at, updated_at)
SELECT org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes,
       timestamptz 'epoch' + created_us * interval '1 microsecond',
       coalesce(timestamptz 'epoch' + updated_us * interval '1 microsecond', :updated_at ::timestamptz)
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[], :attributes ::jsonb[], :created_us ::bigint[], :updated_us ::bigint[])
    AS c (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_us, updated_us)
RETURNING true;

-- remove_emails --
-- Remove the email of contacts after the address moved to another contact. `updated_at`: see changes.sql, as below.
UPDATE contacts c
SET email = NULL, email_domain = NULL,
    updated_at = coalesce(timestamptz 'epoch' + l.updated_us * interval '1 microsecond',
                          greatest(:updated_at ::timestamptz, c.updated_at + interval '1 microsecond') + l.steps * interval '1 microsecond')
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :steps ::integer[], :updated_us ::bigint[]) AS l (org_id, id, steps, updated_us)
WHERE c.org_id = l.org_id AND c.id = l.id;

-- add_contact_identifiers --
-- Write the identifiers that contacts gained; a null leaves the column as it is.
UPDATE contacts c
SET email = coalesce(f.email, c.email), email_domain = coalesce(f.email_domain, c.email_domain),
    wallet_address = coalesce(f.wallet_address, c.wallet_address), wallet_raw = coalesce(f.wallet_raw, c.wallet_raw),
    external_id = coalesce(f.external_id, c.external_id),
    updated_at = coalesce(timestamptz 'epoch' + f.updated_us * interval '1 microsecond',
                          greatest(:updated_at ::timestamptz, c.updated_at + interval '1 microsecond') + f.steps * interval '1 microsecond')
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[], :steps ::integer[], :updated_us ::bigint[])
    AS f (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, steps, updated_us)
WHERE c.org_id = f.org_id AND c.id = f.id;

-- read_updated --
-- When contacts changed last, in microseconds since the epoch.
SELECT c.id::text, (extract(epoch FROM c.updated_at) * 1000000)::bigint
FROM unnest(:org_ids ::bigint[], :ids ::uuid[]) AS m (org_id, id)
JOIN contacts c ON c.org_id = m.org_id AND c.id = m.id;

-- read_attributes --
-- The attributes of contacts.
SELECT c.id::text, c.attributes::text
FROM unnest(:org_ids ::bigint[], :ids ::uuid[]) AS m (org_id, id)
JOIN contacts c ON c.org_id = m.org_id AND c.id = m.id;

-- merge_attributes --
-- Merge attributes shallowly; the last write wins. Contacts that already have them are not written, nor contacts
-- that were erased meanwhile.
-- A contact has at most 1,000 attributes (MAX_CONTACT_ATTRIBUTES) and 256 KB of them. Beyond that the value is null,
-- which the column refuses. Below 8,000 bytes of text there are always fewer than 1,000 (`"ab": 1, ` takes 9 bytes, and only some
-- hundred names are shorter), so most rows need no counting.
UPDATE contacts c
SET updated_at = coalesce(timestamptz 'epoch' + m.updated_us * interval '1 microsecond',
                          greatest(:updated_at ::timestamptz, c.updated_at + interval '1 microsecond')
                          + coalesce(m.steps, 0) * interval '1 microsecond'), attributes = CASE
    WHEN octet_length(c.attributes::text) + octet_length(m.attributes::text) < 8000 THEN c.attributes || m.attributes
    WHEN octet_length((c.attributes || m.attributes)::text) <= :max_bytes ::integer
        AND (SELECT count(*) FROM jsonb_object_keys(c.attributes || m.attributes)) <= :max_attributes ::integer
        THEN c.attributes || m.attributes
    END
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :attributes ::jsonb[], :steps ::integer[], :updated_us ::bigint[])
    AS m (org_id, id, attributes, steps, updated_us)
WHERE c.org_id = m.org_id AND c.id = m.id AND c.erased_at IS NULL AND (NOT c.attributes @> m.attributes OR m.updated_us IS NOT NULL);

-- assign_identifiers --
-- Write the owners of identifiers; an identifier of another contact moves.
INSERT INTO identities (org_id, kind, value_digest, contact_id, created_at)
SELECT org_id, kind, digest, contact_id, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], :contact_ids ::uuid[])
    AS o (org_id, kind, digest, contact_id)
ON CONFLICT (org_id, kind, value_digest) DO UPDATE SET contact_id = excluded.contact_id;

-- add_conflicts --
-- Record identifiers that belonged to another contact.
INSERT INTO identity_conflicts (org_id, id, event_id, contact_id, other_contact_id, kind, value_digest, outcome, created_at)
SELECT org_id, id, event_id, contact_id, other_contact_id, kind, digest, outcome, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :event_ids ::uuid[], :contact_ids ::uuid[], :other_contact_ids ::uuid[],
            :kinds ::smallint[], :digests ::uuid[], :outcomes ::text[])
    AS c (org_id, id, event_id, contact_id, other_contact_id, kind, digest, outcome)
RETURNING true;

-- Ingest: events and entries ---------------------------------------------------------------------------------------

-- add_events --
-- Insert events, received when they occurred unless `created_at` is given; moments are microseconds since the epoch.
-- Payloads arrive as one text with record separators between them: JSON never contains one, so nothing needs
-- quoting. The transaction's number is computed once, not per row.
INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                    wallet_address, email, external_id, stored_in)
SELECT org_id, id, contact_id, event, timestamptz 'epoch' + occurred_us * interval '1 microsecond',
       coalesce(:created_at ::timestamptz, timestamptz 'epoch' + occurred_us * interval '1 microsecond'),
       payload::jsonb, idempotency_key, wallet_address, email, external_id,
       (SELECT pg_current_xact_id()::text::bigint + :added ::bigint)
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :contact_ids ::uuid[], :events ::text[], :occurred_us ::bigint[],
            string_to_array(:payloads, chr(30)), :idempotency_keys ::text[], :wallets ::text[], :emails ::text[], :external_ids ::text[])
    AS e (org_id, id, contact_id, event, occurred_us, payload, idempotency_key, wallet_address, email, external_id)
RETURNING true;

-- add_changing_events --
-- As `add_events` and `changes.merge_attributes` in one statement, for batches with events that change attributes of contacts (an empty
-- text: none), at most one of each contact. The history of the contact is in the row of the event: a statement of its own, a row and
-- its index entries cost ingest 20 % more (docs/decisions/0079-changes-in-events.md).
-- `replaced` passes the column of the contact on, because only Postgres 18 returns old values. Copying small attributes costs less
-- than selecting those that the event sets. NOT IN is a hashed lookup, where a join would compare all pairs.
WITH e AS MATERIALIZED (
    SELECT position, org_id, id, contact_id, event, timestamptz 'epoch' + occurred_us * interval '1 microsecond' AS occurred_at,
           payload, idempotency_key, wallet_address, email, external_id, attributes::jsonb
    FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :contact_ids ::uuid[], :events ::text[], :occurred_us ::bigint[],
                string_to_array(:payloads, chr(30)), :idempotency_keys ::text[], :wallets ::text[], :emails ::text[],
                :external_ids ::text[], string_to_array(:attributes, chr(30), ''))
        WITH ORDINALITY
        AS e (org_id, id, contact_id, event, occurred_us, payload, idempotency_key, wallet_address, email, external_id, attributes, position)
), changed AS (
    UPDATE contacts c
    SET updated_at = greatest(:created_at ::timestamptz, c.updated_at + interval '1 microsecond'),
        replaced = CASE WHEN pg_column_size(c.attributes) <= 250 THEN c.attributes ELSE (
            SELECT jsonb_object_agg(k, c.attributes -> k) FILTER (WHERE c.attributes ? k) FROM jsonb_object_keys(e.attributes) AS k) END,
        attributes = CASE
            WHEN octet_length(c.attributes::text) + octet_length(e.attributes::text) < 8000 THEN c.attributes || e.attributes
            WHEN octet_length((c.attributes || e.attributes)::text) <= :max_bytes ::integer
                AND (SELECT count(*) FROM jsonb_object_keys(c.attributes || e.attributes)) <= :max_attributes ::integer
                THEN c.attributes || e.attributes
        END
    FROM e
    WHERE c.org_id = e.org_id AND c.id = e.contact_id AND e.attributes IS NOT NULL AND c.erased_at IS NULL
        AND NOT c.attributes @> e.attributes
    RETURNING e.*, c.updated_at AS changed_at, c.replaced
)
INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                    wallet_address, email, external_id, stored_in, attributes, replaced, changed_at)
SELECT org_id, id, contact_id, event, occurred_at, :created_at ::timestamptz, payload::jsonb, idempotency_key, wallet_address, email,
       external_id, (SELECT pg_current_xact_id()::text::bigint + :added ::bigint), attributes, replaced, changed_at
FROM (
    SELECT * FROM changed
    UNION ALL
    SELECT position, org_id, id, contact_id, event, occurred_at, payload, idempotency_key, wallet_address, email, external_id,
           NULL, NULL, NULL
    FROM e WHERE position NOT IN (SELECT position FROM changed)
) AS v
RETURNING true;

-- add_entries --
-- One entry per automation and event.
INSERT INTO entries (org_id, id, automation_id, automation_version, activation, event_id, event_created_at, contact_id, request_id,
                     state, due_at, created_at, updated_at)
SELECT org_id, id, automation_id, version, activation, event_id, :created_at ::timestamptz, contact_id, request_id, 'pending',
       :created_at ::timestamptz, :created_at ::timestamptz, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :automation_ids ::uuid[], :versions ::integer[], :activations ::integer[],
            :event_ids ::uuid[], :contact_ids ::uuid[], :request_ids ::text[])
    AS e (org_id, id, automation_id, version, activation, event_id, contact_id, request_id)
ON CONFLICT (org_id, automation_id, event_id) DO NOTHING;

-- wake_engine --
-- Notify every engine, when this transaction commits, that entries are due.
SELECT pg_notify('workbench_entries', '');

-- wake_waiting_entries --
-- Make entries due at these moments that wait for events of their contacts, or for changes of attributes, and notify the
-- engines; the contacts' locks are held. An entry that was put back until its turn keeps its place there.
-- The entries are found first, contact by contact, and made due afterwards: a plan that joins both at once may scan
-- all entries that wait.
WITH w AS MATERIALIZED (
    SELECT DISTINCT * FROM unnest(:org_ids ::bigint[], :contact_ids ::uuid[], :events ::text[], :moments ::timestamptz[])
        AS w (org_id, contact_id, event, moment)
), waiting AS MATERIALIZED (
    SELECT e.*, w.moment FROM w CROSS JOIN LATERAL (
        SELECT e.org_id, e.id FROM entries e
        WHERE e.org_id = w.org_id AND e.contact_id = w.contact_id AND e.state = 'waiting' AND e.awaits IS NOT NULL
            AND w.event = ANY(e.awaits)
        ORDER BY e.id    -- the order of the index on waiting entries, and of no other index
    ) AS e
), woken AS (
    UPDATE entries e SET due_at = waiting.moment, updated_at = :at ::timestamptz,
        turn_at = CASE WHEN e.turn_at > waiting.moment THEN waiting.moment ELSE e.turn_at END
    FROM waiting
    WHERE e.org_id = waiting.org_id AND e.id = waiting.id AND e.state || '' = 'waiting'    -- keeps the planner from an index on states
        AND greatest(e.due_at, e.due_at) > waiting.moment
    RETURNING e.id
)
SELECT pg_notify('workbench_entries', '') WHERE EXISTS (SELECT FROM woken);

-- add_dry_runs --
-- Keep dry runs for the debugger; a key that an earlier dry run used is not returned.
INSERT INTO dry_runs (org_id, key_digest, id, event, contact_id, occurred_at, created_at, payload, idempotency_key, matched)
SELECT org_id, key_digest, id, event, contact_id, timestamptz 'epoch' + occurred_us * interval '1 microsecond',
       :created_at ::timestamptz, payload::jsonb, idempotency_key, matched
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[], :ids ::uuid[], :events ::text[], :contact_ids ::uuid[],
            :occurred_us ::bigint[], string_to_array(:payloads, chr(30)), :idempotency_keys ::text[], :matched ::integer[])
    AS d (org_id, key_digest, id, event, contact_id, occurred_us, payload, idempotency_key, matched)
ON CONFLICT (org_id, key_digest) DO NOTHING
RETURNING id::text;

-- add_notices --
-- Record rejected events and duplicates; moments are microseconds since the epoch.
INSERT INTO event_notices (org_id, id, outcome, event, idempotency_key, field, reason, body, received_at)
SELECT org_id, id, outcome, event, idempotency_key, field, reason, body,
       timestamptz 'epoch' + received_us * interval '1 microsecond'
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :outcomes ::text[], :events ::text[], :idempotency_keys ::text[],
            :fields ::text[], :reasons ::text[], :bodies ::jsonb[], :received_us ::bigint[])
    AS n (org_id, id, outcome, event, idempotency_key, field, reason, body, received_us)
RETURNING true;

-- count_misspelt --
-- Count fields of accepted events that look misspelt, by key and day.
INSERT INTO misspelt_fields (org_id, day, key_id, field, count, last_at)
SELECT org_id, date_trunc('day', :at ::timestamptz), key_id, field, count, :at ::timestamptz
FROM unnest(:org_ids ::bigint[], :key_ids ::uuid[], :fields ::text[], :counts ::bigint[])
    AS m (org_id, key_id, field, count)
ON CONFLICT (org_id, day, key_id, field)
DO UPDATE SET count = misspelt_fields.count + EXCLUDED.count, last_at = EXCLUDED.last_at;

-- list_misspelt --
-- The fields that look misspelt, on the days since a moment, the most frequent first.
SELECT m.field, m.key_id, k.prefix || '…' || k.last4 AS key, k.name AS key_name, sum(m.count)::bigint AS count,
       max(m.last_at) AS last_at
FROM misspelt_fields m
JOIN api_keys k ON k.org_id = :org_id AND k.id = m.key_id
WHERE m.org_id = :org_id AND m.day >= date_trunc('day', :since ::timestamptz)
GROUP BY m.field, m.key_id, k.prefix, k.last4, k.name
ORDER BY sum(m.count) DESC, m.field, m.key_id
LIMIT :limit;

-- Counting ---------------------------------------------------------------------------------------------------------
-- Each event is counted once; api/catalog/counts.py explains why none is lost or counted twice.

-- close_hours --
-- From now on, events dated before `until` are late, in every organization; a new organization is counted from
-- `first`.
INSERT INTO event_counting (org_id, counted_until, closed_until)
SELECT id, :first ::timestamptz, :until ::timestamptz FROM organizations
WHERE id NOT IN (SELECT org_id FROM event_counting WHERE closed_until >= :until ::timestamptz)
ORDER BY id
ON CONFLICT (org_id) DO UPDATE SET closed_until = EXCLUDED.closed_until
WHERE event_counting.closed_until < EXCLUDED.closed_until;

-- wake_counting --
-- Close idle organizations for which late events were noted.
UPDATE event_counting SET closed_until = greatest(:until ::timestamptz, counted_until)
WHERE closed_until = :resting ::timestamptz AND org_id IN (SELECT org_id FROM late_events);

-- rest_counting --
-- Make an organization idle if nothing is left to count: from now on every event is noted as late.
UPDATE event_counting SET closed_until = :resting ::timestamptz
WHERE org_id = :org_id AND counted_until = closed_until AND NOT EXISTS (SELECT FROM late_events WHERE org_id = :org_id);

-- list_uncounted --
-- Organizations that are closed further than they are counted, without idle ones.
SELECT org_id, counted_until, closed_until FROM event_counting
WHERE counted_until < closed_until AND closed_until < :resting ::timestamptz
ORDER BY org_id;

-- list_writers --
-- The transactions that may be storing events now: each of them has claimed idempotency keys before.
SELECT DISTINCT virtualtransaction FROM pg_catalog.pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = 'idempotency_keys'::regclass
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());

-- advance --
-- Move `counted_until` forward; no row if another process was faster.
UPDATE event_counting SET counted_until = :until
WHERE org_id = :org_id AND counted_until = :since AND closed_until >= :until;

-- hold_notes --
-- Lock the notes, in the order in which imports lock them, and wait for imports that add to them: the counts then
-- include everything that was noted.
SELECT FROM late_events WHERE org_id = :org_id AND at < :until
ORDER BY source, event, at
FOR UPDATE;

-- count_closed --
-- Count the events dated between two moments by hour, together with those that arrived late before. Both parts see
-- the same snapshot, so an event noted as late in between is counted, and its note is deleted. Names are found one
-- after the other, with an index that does not begin with the time.
WITH RECURSIVE names AS (
    (SELECT v.event FROM events v
     WHERE v.org_id = :org_id AND v.created_at >= date_trunc('month', :since ::timestamptz)
        AND v.created_at < date_trunc('month', :until ::timestamptz) + interval '1 month'
     ORDER BY v.event LIMIT 1)
    UNION ALL
    SELECT (SELECT v.event FROM events v
            WHERE v.org_id = :org_id AND v.event > n.event AND v.created_at >= date_trunc('month', :since ::timestamptz)
                AND v.created_at < date_trunc('month', :until ::timestamptz) + interval '1 month'
            ORDER BY v.event LIMIT 1)
    FROM names n WHERE n.event IS NOT NULL
), noted AS (
    DELETE FROM late_events WHERE org_id = :org_id AND at < :until RETURNING event, at, count
), counted AS (
    SELECT n.event, counts.hour, counts.count
    FROM names n CROSS JOIN LATERAL (
        SELECT date_trunc('hour', v.created_at) AS hour, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = n.event AND v.created_at >= :since AND v.created_at < :until
        GROUP BY 1
    ) AS counts
    UNION ALL
    SELECT event, date_trunc('hour', at), count FROM noted WHERE at < :since
)
SELECT event, hour, sum(count)::bigint FROM counted GROUP BY event, hour;

-- add_counts --
-- Add the counts to the hours and days.
WITH c AS MATERIALIZED (
    SELECT * FROM unnest(:events ::text[], :hours ::timestamptz[], :counts ::bigint[]) AS c (event, hour, count)
), by_day AS (
    INSERT INTO event_days (org_id, event, day, count)
    SELECT :org_id, event, date_trunc('day', hour), sum(count) FROM c GROUP BY 2, 3
    ON CONFLICT (org_id, event, day) DO UPDATE SET count = event_days.count + EXCLUDED.count
)
INSERT INTO event_hours (org_id, event, hour, count)
SELECT :org_id, event, hour, count FROM c
ON CONFLICT (org_id, event, hour) DO UPDATE SET count = event_hours.count + EXCLUDED.count;

-- note_late --
-- Note events that are dated before the closed moment. An import adds to its own note of the same hour.
INSERT INTO late_events (org_id, source, event, at, count)
SELECT org_id, coalesce(:source ::uuid, gen_random_uuid()), event, at, count
FROM unnest(:org_ids ::bigint[], :events ::text[], :ats ::timestamptz[], :counts ::bigint[]) AS l (org_id, event, at, count)
ON CONFLICT (org_id, source, event, at) DO UPDATE SET count = late_events.count + EXCLUDED.count;

-- delete_old_counts --
-- Delete the counts before the hours that queries ask for.
WITH days AS (
    DELETE FROM event_days WHERE org_id = :org_id AND day < :before
)
DELETE FROM event_hours WHERE org_id = :org_id AND hour < :before;

-- Catalog ----------------------------------------------------------------------------------------------------------
-- Events since a moment, exactly, in one statement: the days and hours counted before (api/catalog/counts.py), plus
-- the notes of late events, plus a count of all other rows. Dry runs are not included. `first_day` and `first_hour`
-- are the first whole day and hour after the moment; `edge_day` and `edge_hour` are the day and hour that contain it.

-- count_events --
-- Event names received since a moment, most frequent first, ties by name, with their counts by day.
WITH RECURSIVE reached AS (
    SELECT coalesce(max(counted_until), '-infinity') AS until FROM event_counting WHERE org_id = :org_id
), names AS (
    (SELECT v.event FROM events v
     WHERE v.org_id = :org_id AND v.created_at >= (SELECT date_trunc('month', greatest(until, :since)) FROM reached)
     ORDER BY v.event LIMIT 1)
    UNION ALL
    SELECT (SELECT v.event FROM events v
            WHERE v.org_id = :org_id AND v.event > n.event
                AND v.created_at >= (SELECT date_trunc('month', greatest(until, :since)) FROM reached)
            ORDER BY v.event LIMIT 1)
    FROM names n WHERE n.event IS NOT NULL
), late AS (
    SELECT event, at, count FROM late_events
    WHERE org_id = :org_id AND at >= :edge_hour AND at < (SELECT until FROM reached)
), edge AS MATERIALIZED (
    SELECT event FROM event_days WHERE org_id = :org_id AND day = :edge_day AND :edge_day < :since
    UNION
    SELECT event FROM late WHERE at < :first_hour
), days AS (
    SELECT event, day, count FROM event_days WHERE org_id = :org_id AND day >= :first_day
    UNION ALL
    SELECT event, date_trunc('day', at), count FROM late WHERE at >= :first_hour
    UNION ALL
    SELECT e.event, :edge_day, hours.count
    FROM edge e CROSS JOIN LATERAL (
        SELECT sum(h.count) AS count FROM event_hours h
        WHERE h.org_id = :org_id AND h.event = e.event AND h.hour >= :first_hour AND h.hour < :first_day
    ) AS hours
    UNION ALL
    SELECT e.event, :edge_day, cut.count
    FROM edge e CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = e.event AND v.created_at >= :since
            AND v.created_at < (SELECT least(until, :first_hour) FROM reached)
    ) AS cut
    UNION ALL
    SELECT n.event, live.day, live.count
    FROM names n CROSS JOIN LATERAL (
        SELECT date_trunc('day', v.created_at) AS day, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = n.event AND v.created_at >= (SELECT greatest(until, :since) FROM reached)
        GROUP BY 1
    ) AS live
), summed AS (
    SELECT event, day, sum(count)::bigint AS count FROM days
    WHERE count > 0 AND starts_with(event, :prefix) GROUP BY event, day
)
SELECT event, sum(count)::bigint AS total, array_agg(day ORDER BY day), array_agg(count ORDER BY day)
FROM summed GROUP BY event
ORDER BY total DESC, event
LIMIT :limit;

-- count_event --
-- How often one event name was received on each day.
WITH reached AS (
    SELECT coalesce(max(counted_until), '-infinity') AS until FROM event_counting WHERE org_id = :org_id
), days AS (
    SELECT day, count FROM event_days WHERE org_id = :org_id AND event = :event AND day >= :first_day
    UNION ALL
    SELECT :edge_day, count FROM event_hours
    WHERE org_id = :org_id AND event = :event AND hour >= :first_hour AND hour < :first_day
    UNION ALL
    SELECT date_trunc('day', at), count FROM late_events
    WHERE org_id = :org_id AND event = :event AND at >= :first_hour AND at < (SELECT until FROM reached)
    UNION ALL
    SELECT :edge_day, count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= :since
        AND created_at < (SELECT least(until, :first_hour) FROM reached)
    UNION ALL
    SELECT date_trunc('day', created_at), count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= (SELECT greatest(until, :since) FROM reached)
    GROUP BY 1
)
SELECT day, sum(count)::bigint FROM days WHERE count > 0 GROUP BY day ORDER BY day;

-- find_first_and_last --
-- When events were received first ever, and last since a moment, in the given order.
SELECT (SELECT min(created_at) FROM events WHERE org_id = :org_id AND event = k.event) AS first,
       (SELECT max(created_at) FROM events WHERE org_id = :org_id AND event = k.event AND created_at >= :since) AS last
FROM unnest(:events ::text[]) WITH ORDINALITY AS k (event, position)
ORDER BY k.position;

-- list_newest_events --
-- The newest events of one name.
SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id
FROM events
WHERE org_id = :org_id AND event = :event AND created_at >= :since
ORDER BY created_at DESC
LIMIT :limit;

-- list_newest_wallets --
-- The wallets of the newest events of one name; empty for an event without one.
SELECT coalesce(wallet_address, '') FROM events
WHERE org_id = :org_id AND event = :event AND created_at >= :since
ORDER BY created_at DESC
LIMIT :limit;

-- list_newest_wallets_of_all --
-- The wallets of the newest events; empty for an event without one. The primary key has them in this order.
SELECT coalesce(wallet_address, '') FROM events
WHERE org_id = :org_id AND id >= :first_id ::uuid AND created_at >= :since
ORDER BY id DESC
LIMIT :limit;

-- sample_payloads --
-- Payloads of one name between two moments: the newest of each of `parts` equal parts of that time. The parts are
-- shuffled, so the first payloads come from the whole period.
SELECT sampled.payload
FROM generate_series(0, :parts - 1) AS part
CROSS JOIN LATERAL (
    SELECT payload FROM events
    WHERE org_id = :org_id AND event = :event
        AND created_at >= :since ::timestamptz + part * (:until ::timestamptz - :since ::timestamptz) / :parts
        AND created_at < :since ::timestamptz + (part + 1) * (:until ::timestamptz - :since ::timestamptz) / :parts
    ORDER BY created_at DESC
    LIMIT :per_part
) AS sampled
ORDER BY hashtext(part::text);

-- Live tail --------------------------------------------------------------------------------------------------------
-- Accepted events, dry runs, rejected events and duplicates. Every stream runs `list_ids_after` four times a second,
-- so it reads only ids. `since` lies before `after` by more than clocks differ; it excludes the partitions of earlier
-- months.

-- list_ids_after --
-- Ids beyond `after` that were not returned before, in order.
(SELECT id FROM events
 WHERE 'accepted' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND created_at >= :since
     AND id <> ALL (:exclude ::uuid[])
 ORDER BY id LIMIT :limit)
UNION ALL
(SELECT id FROM dry_runs
 WHERE 'dry_run' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND id <> ALL (:exclude ::uuid[])
 ORDER BY id LIMIT :limit)
UNION ALL
(SELECT id FROM event_notices
 WHERE outcome = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND id <> ALL (:exclude ::uuid[])
 ORDER BY id LIMIT :limit)
ORDER BY id LIMIT :limit;

-- list_newest_ids --
-- The newest ids beyond `after`, newest first.
(SELECT id FROM events
 WHERE 'accepted' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND created_at >= :since
 ORDER BY id DESC LIMIT :limit)
UNION ALL
(SELECT id FROM dry_runs
 WHERE 'dry_run' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid
 ORDER BY id DESC LIMIT :limit)
UNION ALL
(SELECT id FROM event_notices
 WHERE outcome = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid
 ORDER BY id DESC LIMIT :limit)
ORDER BY id DESC LIMIT :limit;

-- read_recent --
-- The rows with these ids, oldest first.
SELECT id, created_at AS at, 'accepted' AS outcome, event, contact_id, idempotency_key, payload,
       NULL::text AS field, NULL::text AS error, NULL::jsonb AS body, NULL::integer AS matched_automations
FROM events
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[]) AND created_at >= :since
UNION ALL
SELECT id, created_at, 'dry_run', event, contact_id, idempotency_key, payload, NULL, NULL, NULL, matched
FROM dry_runs
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[])
UNION ALL
SELECT id, received_at, outcome, event, NULL, idempotency_key, NULL, field, reason, body, NULL
FROM event_notices
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[])
ORDER BY at, id;

-- count_entries --
-- The number of entries of each event of some micro-batches. Entries have no index by event, so they are found by
-- their ids, which begin with the `created_at` of their event.
SELECT e.event_id, count(*)
FROM unnest(:first_ids ::uuid[], :last_ids ::uuid[]) AS batch (first_id, last_id)
JOIN entries e ON e.org_id = :org_id AND e.id BETWEEN batch.first_id AND batch.last_id
GROUP BY e.event_id;

-- Upkeep -----------------------------------------------------------------------------------------------------------

-- unknown_tables --
-- Tables with rows and without statistics: a new database has none until something runs ANALYZE. A table that was
-- analyzed without pages, because it was new, is included; one that was analyzed after it was emptied has pages. A
-- partitioned table has no pages of its own, and autovacuum never analyzes it.
SELECT c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'workbench' AND (
    c.relkind = 'r' AND (c.reltuples < 0 OR c.reltuples = 0 AND c.relpages = 0)
        AND pg_catalog.pg_relation_size(c.oid) > 131072
    OR c.relkind = 'p' AND c.reltuples <= 0 AND EXISTS (
        SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = c.oid AND p.reltuples > 0)
);

-- delete_old_dry_runs --
-- Delete the oldest dry runs, which are kept for seven days.
DELETE FROM dry_runs WHERE org_id = :org_id AND key_digest IN (
    SELECT key_digest FROM dry_runs WHERE org_id = :org_id AND id < :before ::uuid ORDER BY id LIMIT :limit);

-- delete_old_misspelt --
-- Delete the oldest counts of misspelt fields, which are kept for seven days.
DELETE FROM misspelt_fields WHERE org_id = :org_id AND (day, key_id, field) IN (
    SELECT day, key_id, field FROM misspelt_fields WHERE org_id = :org_id AND day < date_trunc('day', :before ::timestamptz)
    ORDER BY day LIMIT :limit);

-- delete_old_notices --
-- Delete the oldest rejected events and duplicates, which are kept for seven days.
DELETE FROM event_notices WHERE org_id = :org_id AND id IN (
    SELECT id FROM event_notices WHERE org_id = :org_id AND id < :before ::uuid ORDER BY id LIMIT :limit);
