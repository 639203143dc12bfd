-- Imported history. Everything else an import does is the live ingest's (`ingest.sql`): only moments differ, because
-- what happened long ago is dated by when it happened. The organization stands in a column, never as a constant: by that the planner, as
-- long as it knows nothing of a table, might go through all of it.

-- most_locks --
-- How many locks one transaction may take so that eight of them find room.
SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer / 8;

-- wait_briefly --
-- Let the transaction wait for no lock longer than others would notice.
SET LOCAL lock_timeout = '200ms';

-- month_ids --
-- The ids of the transaction that has just made the table of a month: its own, and those of the two savepoints around that. No row if it
-- made none, or somebody else was given an id in between.
SELECT id FROM pg_current_xact_id_if_assigned() AS own, generate_series(own::text::bigint, own::text::bigint + 2) AS id
WHERE (SELECT xmin::text::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass(:name)) = (own::text::bigint + 2) % 4294967296;

-- snapshot --
-- Which transactions have ended. No row on Citus, whose nodes number their transactions each for itself.
SELECT pg_current_snapshot()::text WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'citus');

-- find_held_keys --
-- Which of these idempotency keys are held already; `position` counts from 0.
SELECT k.position - 1
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[]) WITH ORDINALITY AS k (org_id, key_digest, position)
JOIN idempotency_keys i ON i.org_id = k.org_id AND i.key_digest = k.key_digest;

-- find_changed_contacts --
-- Which of these contacts have been written since, or merged; `position` counts from 0, moments are microseconds since the epoch.
WITH k AS MATERIALIZED (
    SELECT * FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :updated_us ::bigint[]) WITH ORDINALITY AS k (org_id, id, updated_us, position)
), as_known AS MATERIALIZED (
    SELECT k.position
    FROM k JOIN contacts c ON c.org_id = k.org_id AND c.id = k.id
    WHERE c.updated_at = timestamptz 'epoch' + k.updated_us * interval '1 microsecond' AND c.merged_into IS NULL
)
SELECT position - 1 FROM k WHERE position NOT IN (SELECT position FROM as_known);

-- find_returning --
-- As `find_owners`, with the moment each contact was last written, in microseconds since the epoch.
SELECT k.position - 1, c.id::text, c.wallet_address, c.email, c.external_id,
       coalesce(c.attributes @> k.attributes::jsonb, true), (extract(epoch FROM c.updated_at) * 1000000)::bigint
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], string_to_array(:attributes, chr(30), ''))
    WITH ORDINALITY AS k (org_id, kind, digest, attributes, position)
JOIN identities i ON i.org_id = k.org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = i.org_id AND c.id = i.contact_id;

-- add_past_contacts --
-- New contacts, as of their first event; moments are microseconds since the epoch.
INSERT INTO contacts (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_at, updated_at)
SELECT org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes,
       timestamptz 'epoch' + created_us * interval '1 microsecond', :updated_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[], :attributes ::jsonb[], :created_us ::bigint[])
    AS c (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_us)
RETURNING true;
