-- Segments: what defines them, when they are refreshed, how large they were.

-- insert_segment --
-- A new segment; nothing when one of that name is there.
INSERT INTO segments (org_id, id, name, kind, sql, params, every_seconds, provenance, size, revision, created_at, created_by,
                      updated_at, updated_by)
VALUES (:org_id, :id, :name, :kind, :sql, :params ::jsonb, :every_seconds, :provenance ::jsonb, 0, 1, :at, :key_id, :at, :key_id)
ON CONFLICT (org_id, name) WHERE archived_at IS NULL DO NOTHING
RETURNING org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
          due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at;

-- find_segment --
-- The segment of a name.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at
FROM segments
WHERE org_id = :org_id AND name = :name AND archived_at IS NULL;

-- lock_segment --
-- The same, held until commit: changes of a segment, and of who is in it, happen one after the other.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at
FROM segments
WHERE org_id = :org_id AND name = :name AND archived_at IS NULL
FOR UPDATE;

-- list_segments --
-- All segments by name.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at
FROM segments
WHERE org_id = :org_id AND archived_at IS NULL
ORDER BY name;

-- list_daily_sizes --
-- How large each segment was on each of the last days at this time of day, oldest first; null before it was there.
SELECT s.id, ARRAY(
    SELECT (SELECT z.size FROM segment_sizes z
            WHERE z.org_id = :org_id AND z.segment_id = s.id AND z.at <= :now ::timestamptz - make_interval(days => ago)
            ORDER BY z.at DESC LIMIT 1)
    FROM generate_series(:days ::integer - 1, 0, -1) AS ago)
FROM segments s
WHERE s.org_id = :org_id AND s.archived_at IS NULL;

-- list_sizes --
-- How large a segment was after each of its newest changes, newest first.
SELECT at, size, entered, departed FROM segment_sizes
WHERE org_id = :org_id AND segment_id = :id
ORDER BY at DESC
LIMIT :most;

-- write_segment --
-- Change what defines a segment; its lock is held. Who refreshes what it was before is void.
UPDATE segments
SET sql = :sql, params = :params ::jsonb, every_seconds = :every_seconds, provenance = :provenance ::jsonb, revision = :revision,
    refreshed_at = :refreshed_at, updated_at = :at, updated_by = :key_id, due_at = :due_at, lease_token = lease_token + 1,
    lease_until = NULL
WHERE org_id = :org_id AND id = :id;

-- archive_segment --
-- Put a segment away: its name is free again.
UPDATE segments
SET archived_at = :at, updated_at = :at, updated_by = :key_id, revision = revision + 1, due_at = NULL, lease_token = lease_token + 1,
    lease_until = NULL
WHERE org_id = :org_id AND id = :id;

-- record_refresh --
-- Note who is in it now, by how many, and when to look again; its lock is held. The size is kept when it changed, or is the first.
-- What others who refresh it find out later, but began to ask before, is void.
WITH refreshed AS (
    UPDATE segments
    SET size = :size, refreshed_at = :at, last_error = NULL, failing_since = NULL, failures = 0, due_at = :due_at,
        lease_token = lease_token + 1, lease_until = NULL
    WHERE org_id = :org_id AND id = :id
    RETURNING id
)
INSERT INTO segment_sizes (org_id, segment_id, at, size, entered, departed)
SELECT :org_id, r.id, :at, :size, :entered, :departed
FROM refreshed r
WHERE :entered ::integer + :departed ::integer > 0 OR :size IS DISTINCT FROM (
    SELECT z.size FROM segment_sizes z WHERE z.org_id = :org_id AND z.segment_id = r.id ORDER BY z.at DESC LIMIT 1)
ON CONFLICT (org_id, segment_id, at) DO NOTHING;

-- record_failure --
-- Note why a refresh failed, unless the segment was refreshed, changed or taken over since; the members stay those of before.
UPDATE segments
SET last_error = :error, failing_since = coalesce(failing_since, :at), failures = failures + 1, due_at = :due_at, lease_until = NULL
WHERE org_id = :org_id AND id = :id AND lease_token = :lease_token AND archived_at IS NULL;

-- put_off --
-- Let go of a segment and look at it again later, through no fault of its own; `error` says what it waits for, if it is late.
UPDATE segments
SET due_at = :due_at, lease_until = NULL, last_error = coalesce(:error ::text, last_error),
    failing_since = CASE WHEN :error ::text IS NULL THEN failing_since ELSE coalesce(failing_since, :at) END
WHERE org_id = :org_id AND id = :id AND lease_token = :lease_token AND archived_at IS NULL;

-- correct_size --
-- Count members that went or came after the size was noted.
UPDATE segments SET size = size + :by WHERE org_id = :org_id AND id = :id;

-- organizations_due --
-- Organizations with a segment that is due and none that is being refreshed: first whose last turn is longest ago.
SELECT org_id FROM segments
WHERE archived_at IS NULL
GROUP BY org_id
HAVING bool_or(due_at <= :now) AND NOT coalesce(bool_or(lease_until > :now), false)
ORDER BY max(attempted_at) NULLS FIRST, org_id;

-- claim_due --
-- Take the segment of an organization that has been due longest, under a lease that others respect, if none is under one. The
-- organization's turn is held.
UPDATE segments
SET lease_token = lease_token + 1, lease_until = :until, attempted_at = :now
WHERE org_id = :org_id AND id = (
    SELECT id FROM segments
    WHERE org_id = :org_id AND due_at <= :now
    ORDER BY due_at LIMIT 1
    FOR UPDATE SKIP LOCKED)
    AND NOT EXISTS (SELECT FROM segments b WHERE b.org_id = :org_id AND b.lease_until > :now)
RETURNING org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
          due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at;

-- published_graphs --
-- The live versions of automations that speak of segments; what they ask, the language decides.
SELECT a.name, v.graph
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND strpos(v.graph ::text, 'contact.segments') > 0
ORDER BY a.name;

-- forget_sizes --
-- Delete the oldest sizes; they are kept for 400 days.
DELETE FROM segment_sizes s
USING (SELECT segment_id, at FROM segment_sizes WHERE org_id = :org_id AND at < :before LIMIT :most) old
WHERE s.org_id = :org_id AND s.segment_id = old.segment_id AND s.at = old.at;
