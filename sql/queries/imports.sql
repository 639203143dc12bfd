-- Imports of history. Events and contacts are stored by the statements of live ingest (events.sql).

-- Progress of files ------------------------------------------------------------------------------------------------

-- begin_import --
-- Record that a file is being imported; earlier progress stays.
INSERT INTO imports (org_id, digest, name, lines, stored, duplicates, rejected, started_at, updated_at)
VALUES (:org_id, :digest ::uuid, :name, 0, 0, 0, 0, :at ::timestamptz, :at ::timestamptz)
ON CONFLICT (org_id, digest) DO UPDATE SET updated_at = excluded.updated_at
RETURNING lines, stored, duplicates, rejected, finished_at;

-- advance_import --
-- Record how far a file is done, in the transaction that stores its events. Two imports of one file never move it
-- back. If Postgres crashed and lost earlier batches, `lines` becomes null, which the column refuses.
UPDATE imports
SET lines = CASE WHEN lines >= :after THEN greatest(lines, :lines) END, stored = stored + :stored, duplicates = duplicates + :duplicates,
    rejected = rejected + :rejected, updated_at = :at ::timestamptz
WHERE org_id = :org_id AND digest = :digest ::uuid;

-- commit_without_flush --
-- The commit of this transaction does not wait for the disk. The next one that does, of any session, covers it.
SET LOCAL synchronous_commit = off;

-- finish_import --
-- Record that the whole file is imported. If Postgres crashed and lost batches, `lines` becomes null, as above.
UPDATE imports
SET lines = CASE WHEN lines >= :after THEN lines END, updated_at = :at ::timestamptz, finished_at = :at ::timestamptz
WHERE org_id = :org_id AND digest = :digest ::uuid;

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
