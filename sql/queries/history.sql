-- Imported history. Everything else an import does is the live ingest's (`ingest.sql`): only moments differ, because
-- what happened long ago is dated by when it happened.

-- most_locks --
-- How many locks one transaction may take so that eight of them find room.
SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer / 8;

-- wait_briefly --
-- Let the transaction wait for no lock longer than others would notice.
SET LOCAL lock_timeout = '200ms';

-- find_held_keys --
-- Which of these idempotency keys are held already; `position` counts from 0.
SELECT k.position - 1
FROM unnest(:key_digests ::uuid[]) WITH ORDINALITY AS k (key_digest, position)
JOIN idempotency_keys i ON i.org_id = :org_id ::bigint AND i.key_digest = k.key_digest;

-- add_keys --
-- Claim idempotency keys that nobody was seen to hold, sorted by the caller; one that came meanwhile ends the transaction.
COPY idempotency_keys (org_id, key_digest, event_id, body_digest, created_at) FROM STDIN (FORMAT binary);

-- find_changed_contacts --
-- Which of these contacts have been written since, or merged; moments are microseconds since the epoch.
SELECT k.id::text
FROM unnest(:ids ::uuid[], :updated_us ::bigint[]) AS k (id, updated_us)
LEFT JOIN contacts c ON c.org_id = :org_id ::bigint AND c.id = k.id
WHERE c.updated_at IS DISTINCT FROM timestamptz 'epoch' + k.updated_us * interval '1 microsecond' OR c.merged_into IS NOT NULL;

-- find_returning --
-- As `find_owners`, with the moment each contact was last written, in microseconds since the epoch.
SELECT k.position - 1, c.id::text, c.wallet_address, c.email, c.external_id,
       coalesce(c.attributes @> k.attributes::jsonb, true), (extract(epoch FROM c.updated_at) * 1000000)::bigint
FROM unnest(:kinds ::smallint[], :digests ::uuid[], string_to_array(:attributes, chr(30), ''))
    WITH ORDINALITY AS k (kind, digest, attributes, position)
JOIN identities i ON i.org_id = :org_id ::bigint AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = i.org_id AND c.id = i.contact_id;

-- date_contacts --
-- New contacts date from their first event; moments are microseconds since the epoch.
UPDATE contacts c SET created_at = timestamptz 'epoch' + d.created_us * interval '1 microsecond'
FROM unnest(:ids ::uuid[], :created_us ::bigint[]) AS d (id, created_us)
WHERE c.org_id = :org_id AND c.id = d.id;

-- add_past_events --
-- Store events of the past, created when they occurred.
COPY events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
             wallet_address, email, external_id) FROM STDIN (FORMAT binary);
