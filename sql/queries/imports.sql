-- How far files of history have been imported.

-- begin_import --
-- Note that a file is being imported; what is known of it from before stays.
INSERT INTO imports (org_id, digest, name, lines, stored, duplicates, rejected, started_at, updated_at)
VALUES (:org_id, :digest ::uuid, :name, 0, 0, 0, 0, :at ::timestamptz, :at ::timestamptz)
ON CONFLICT (org_id, digest) DO UPDATE SET updated_at = excluded.updated_at
RETURNING lines, stored, duplicates, rejected, finished_at;

-- advance_import --
-- Note how far a file is done, in the transaction that stores what it says; two imports of one file never set it back.
UPDATE imports
SET lines = greatest(lines, :lines), stored = stored + :stored, duplicates = duplicates + :duplicates,
    rejected = rejected + :rejected, updated_at = :at ::timestamptz
WHERE org_id = :org_id AND digest = :digest ::uuid;

-- finish_import --
-- Note that a file is done.
UPDATE imports SET updated_at = :at ::timestamptz, finished_at = :at ::timestamptz WHERE org_id = :org_id AND digest = :digest ::uuid;

-- forget_import --
-- Begin a file anew.
DELETE FROM imports WHERE org_id = :org_id AND digest = :digest ::uuid;
