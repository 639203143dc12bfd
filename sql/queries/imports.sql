-- Imports of history. Most statements are those of live ingest (events.sql); these differ, because what happened
-- long ago is dated by the time at which it happened.

-- Progress of files ------------------------------------------------------------------------------------------------

-- begin_import --
-- Record that a file is being imported; earlier progress stays.
INSERT INTO imports (org_id, digest, name, lines, stored, duplicates, rejected, started_at, updated_at)
VALUES (:org_id, :digest ::uuid, :name, 0, 0, 0, 0, :at ::timestamptz, :at ::timestamptz)
ON CONFLICT (org_id, digest) DO UPDATE SET updated_at = excluded.updated_at
RETURNING lines, stored, duplicates, rejected, finished_at;

-- advance_import --
-- Record how far a file is done, in the transaction that stores its events. Two imports of one file never move it
-- back.
UPDATE imports
SET lines = greatest(lines, :lines), stored = stored + :stored, duplicates = duplicates + :duplicates,
    rejected = rejected + :rejected, updated_at = :at ::timestamptz
WHERE org_id = :org_id AND digest = :digest ::uuid;

-- finish_import --
-- The file is done.
UPDATE imports SET updated_at = :at ::timestamptz, finished_at = :at ::timestamptz WHERE org_id = :org_id AND digest = :digest ::uuid;

-- forget_import --
-- Forget the progress of a file.
DELETE FROM imports WHERE org_id = :org_id AND digest = :digest ::uuid;

-- Locks and partitions ---------------------------------------------------------------------------------------------

-- max_locks --
-- How many locks one transaction may take so that eight such transactions fit into the lock table.
SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer / 8;

-- wait_briefly --
-- Wait for a lock no longer than other transactions would notice.
SET LOCAL lock_timeout = '200ms';

-- new_partition_ids --
-- The ids of the transaction that has just created a month's partition: its own, and those of the two savepoints
-- around it. No row if it created none, or if another transaction was given an id in between.
SELECT id FROM pg_current_xact_id_if_assigned() AS own, generate_series(own::text::bigint, own::text::bigint + 2) AS id
WHERE (SELECT xmin::text::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass(:name)) = (own::text::bigint + 2) % 4294967296;

-- Pieces of a file -------------------------------------------------------------------------------------------------
-- The organization is a column, never a constant: with a constant, the planner may scan everything of an
-- organization while it has no statistics of a table.

-- transaction_number --
-- The number of this transaction (citus.sql has its offset).
SELECT pg_current_xact_id()::text::bigint + :added ::bigint;

-- take_snapshot --
-- Which transactions have ended. No row on Citus, where each node numbers its own transactions.
SELECT pg_current_snapshot()::text WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'citus');

-- find_claimed_keys --
-- Which of these idempotency keys are claimed already; `position` counts from 0.
SELECT k.position - 1
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[]) WITH ORDINALITY AS k (org_id, key_digest, position)
JOIN idempotency_keys i ON i.org_id = k.org_id AND i.key_digest = k.key_digest;

-- find_changed_contacts --
-- Which of these contacts were written since, or merged; `position` counts from 0, moments are microseconds since
-- the epoch.
WITH k AS MATERIALIZED (
    SELECT * FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :updated_us ::bigint[]) WITH ORDINALITY AS k (org_id, id, updated_us, position)
), unchanged AS MATERIALIZED (
    SELECT k.position
    FROM k JOIN contacts c ON c.org_id = k.org_id AND c.id = k.id
    WHERE c.updated_at = timestamptz 'epoch' + k.updated_us * interval '1 microsecond' AND c.merged_into IS NULL
)
SELECT position - 1 FROM k WHERE position NOT IN (SELECT position FROM unchanged);

-- find_existing_owners --
-- As `find_owners` in events.sql, with the time at which each contact was last written, in microseconds since the
-- epoch.
SELECT k.position - 1, c.id::text, c.wallet_address, c.email, c.external_id,
       coalesce(c.attributes @> k.attributes::jsonb, true), (extract(epoch FROM c.updated_at) * 1000000)::bigint
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], string_to_array(:attributes, chr(30), ''))
    WITH ORDINALITY AS k (org_id, kind, digest, attributes, position)
JOIN identities i ON i.org_id = k.org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = i.org_id AND c.id = i.contact_id;

-- add_past_contacts --
-- New contacts, created at their first event; moments are microseconds since the epoch.
INSERT INTO contacts (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_at, updated_at)
SELECT org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes,
       timestamptz 'epoch' + created_us * interval '1 microsecond', :updated_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[], :attributes ::jsonb[], :created_us ::bigint[])
    AS c (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_us)
RETURNING true;
