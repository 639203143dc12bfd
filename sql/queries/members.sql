-- Who is in a segment. What a query finds gathers in temporary tables, then members are made to be the same, set by set.
--
-- Members that an erasure or a merge is about to delete are left to it; one that a merge is just putting in is waited for. Two that wait for
-- each other so are told apart by Postgres (ConflictError), and the refresh is put off. `mend_members` puts right what erasures and merges
-- committed meanwhile. Temporary tables have no organization: they belong to the transaction, and are joined with one organization's rows.

-- open_found --
-- Where contacts gather until the transaction ends.
CREATE TEMPORARY TABLE IF NOT EXISTS found (contact_id uuid) ON COMMIT DELETE ROWS;

-- open_wanted --
-- Those of them who are there.
CREATE TEMPORARY TABLE IF NOT EXISTS wanted (contact_id uuid) ON COMMIT DELETE ROWS;

-- copy_found --
-- Add contacts, one id a line.
COPY found (contact_id) FROM STDIN;

-- analyze_found --
-- Let the planner know how many they are.
ANALYZE found;

-- analyze_wanted --
-- Let the planner know how many those are.
ANALYZE wanted;

-- keep_known --
-- Keep the contacts that there are, of merged ones those they are now. How many are nobody's (or erased), and how many are kept.
WITH once AS MATERIALIZED (
    SELECT DISTINCT contact_id FROM found
), known AS MATERIALIZED (
    SELECT coalesce(c.merged_into, c.id) AS contact_id
    FROM once f JOIN contacts c ON c.org_id = :org_id AND c.id = f.contact_id
    WHERE c.erased_at IS NULL
), kept AS (
    INSERT INTO wanted (contact_id) SELECT DISTINCT contact_id FROM known
    RETURNING contact_id
)
SELECT (SELECT count(*) FROM once) - (SELECT count(*) FROM known), (SELECT count(*) FROM kept);

-- join_by_hash --
-- Until a new segment has statistics the planner takes it for empty, and would go through all wanted for each of its members.
SET LOCAL enable_nestloop = off;

-- sample_wanted --
-- The first of them.
SELECT contact_id FROM wanted ORDER BY contact_id LIMIT :most;

-- compare_members --
-- How many would enter a segment, and how many would leave it.
SELECT count(*) FILTER (WHERE m.contact_id IS NULL), count(*) FILTER (WHERE w.contact_id IS NULL)
FROM wanted w
FULL JOIN (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m ON m.contact_id = w.contact_id;

-- enter_members --
-- Put those in who are not members yet; who is one is not written.
INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
SELECT :org_id, :segment, w.contact_id, :at
FROM wanted w
LEFT JOIN (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m ON m.contact_id = w.contact_id
WHERE m.contact_id IS NULL
ORDER BY w.contact_id
ON CONFLICT (org_id, segment, contact_id) DO NOTHING;

-- leaving --
-- Those who are members and not wanted.
SELECT m.contact_id FROM (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m
LEFT JOIN wanted w ON w.contact_id = m.contact_id
WHERE w.contact_id IS NULL;

-- drop_members --
-- Take some of them out, but those that somebody else is changing at this moment. (No temporary table may stand beside FOR UPDATE on Citus.)
DELETE FROM segment_members
WHERE org_id = :org_id AND segment = :segment AND contact_id = ANY (ARRAY(
    SELECT contact_id FROM segment_members
    WHERE org_id = :org_id AND segment = :segment AND contact_id = ANY (:ids ::uuid[])
    FOR UPDATE SKIP LOCKED));

-- count_members --
-- How many are in a segment.
SELECT count(*) FROM segment_members WHERE org_id = :org_id AND segment = :segment;

-- mend_members --
-- Take out who was erased or merged since the segment began to be refreshed, and put in who the merged are now. By how many it grew.
-- The caller keeps others from being under way.
WITH gone AS (
    DELETE FROM segment_members m
    USING contacts c
    WHERE m.org_id = :org_id AND m.segment = :segment AND c.org_id = :org_id AND c.id = m.contact_id
        AND num_nonnulls(c.erased_at, c.merged_into) > 0
        AND m.contact_id = ANY (ARRAY(
            SELECT id FROM contacts WHERE org_id = :org_id AND erased_at >= :since
            UNION ALL
            SELECT absorbed_id FROM contact_merges WHERE org_id = :org_id AND undone_at IS NULL AND created_at >= :since))
    RETURNING c.merged_into AS contact_id, c.erased_at, m.entered_at
), moved AS (
    INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
    SELECT :org_id, :segment, contact_id, min(entered_at)
    FROM gone WHERE contact_id IS NOT NULL AND erased_at IS NULL GROUP BY contact_id
    ON CONFLICT (org_id, segment, contact_id) DO NOTHING
    RETURNING contact_id
)
SELECT (SELECT count(*) FROM moved) - (SELECT count(*) FROM gone);

-- clear_members --
-- Take everybody out of a segment that is put away, whoever came in at the last moment too; the caller keeps others from being under way.
DELETE FROM segment_members m
WHERE m.org_id = :org_id AND m.segment = :segment
    AND NOT EXISTS (SELECT FROM segments s WHERE s.org_id = :org_id AND s.name = :segment AND s.archived_at IS NULL);

-- keep_part --
-- Put those who are wanted aside, as a part of an audience that is to come.
INSERT INTO audience_parts (org_id, segment_id, contact_id)
SELECT :org_id, :segment_id, w.contact_id FROM wanted w ORDER BY w.contact_id
ON CONFLICT (org_id, segment_id, contact_id) DO NOTHING;

-- empty_wanted --
-- Want nobody.
DELETE FROM wanted;

-- want_parts --
-- Want those who were put aside: who they are now, without those who were erased since.
INSERT INTO wanted (contact_id)
SELECT DISTINCT coalesce(c.merged_into, c.id)
FROM audience_parts p JOIN contacts c ON c.org_id = p.org_id AND c.id = p.contact_id
WHERE p.org_id = :org_id AND p.segment_id = :segment_id AND c.erased_at IS NULL;

-- forget_parts --
-- Put nobody aside any more.
DELETE FROM audience_parts WHERE org_id = :org_id AND segment_id = :segment_id;
