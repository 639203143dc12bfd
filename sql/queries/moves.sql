-- Moves of waiting entries to another version of their automation.

-- Moves ------------------------------------------------------------------------------------------------------------

-- insert_move --
-- A new move. Its entries are not fixed yet.
INSERT INTO moves (org_id, id, automation_id, version, mode, state, patient_until, created_at, created_by)
VALUES (:org_id, :move_id, :automation_id, :version, :mode ::jsonb, 'planned', :patient_until, :now, :key_id ::uuid)
RETURNING org_id, id, automation_id, version, mode, state, after, patient_until, created_at, created_by, ended_at;

-- find_move --
-- One move of an automation.
SELECT org_id, id, automation_id, version, mode, state, after, patient_until, created_at, created_by, ended_at
FROM moves
WHERE org_id = :org_id AND automation_id = :automation_id AND id = :move_id;

-- list_moves --
-- The newest moves of an automation.
SELECT org_id, id, automation_id, version, mode, state, after, patient_until, created_at, created_by, ended_at
FROM moves
WHERE org_id = :org_id AND automation_id = :automation_id
ORDER BY id DESC
LIMIT :limit;

-- lock_move --
-- One move, locked until commit.
SELECT org_id, id, automation_id, version, mode, state, after, patient_until, created_at, created_by, ended_at
FROM moves
WHERE org_id = :org_id AND id = :move_id
FOR UPDATE;

-- find_open_moves --
-- The moves of all organizations that are not complete.
SELECT m.org_id, m.automation_id, m.id
FROM automation_epochs o
CROSS JOIN LATERAL (
    SELECT org_id, automation_id, id FROM moves
    WHERE org_id = o.org_id AND state IN ('planned', 'running', 'undoing')
    ORDER BY id LIMIT :limit    -- the order of the index on open moves
) AS m
ORDER BY m.id
LIMIT :limit;

-- write_move --
-- Write the progress of a locked move.
UPDATE moves SET state = :state, after = :after ::uuid, patient_until = :patient_until, ended_at = :ended_at
WHERE org_id = :org_id AND id = :id
RETURNING true;

-- count_move --
-- How many entries a move has, how many of them were moved, not moved, and moved back.
SELECT count(*) AS entries, count(moved_at) AS moved, count(reason) AS refused, count(moved_back_at) AS moved_back, count(kept) AS kept
FROM entry_moves
WHERE org_id = :org_id AND move_id = :move_id;

-- count_reasons --
-- Why entries were not moved, or not moved back, the most frequent reasons first.
SELECT coalesce(kept, reason), count(*) FROM entry_moves
WHERE org_id = :org_id AND move_id = :move_id AND coalesce(kept, reason) IS NOT NULL
GROUP BY 1
ORDER BY 2 DESC, 1
LIMIT :limit;

-- list_refused --
-- The first entries that were not moved, or not moved back.
SELECT entry_id, coalesce(kept, reason) AS reason FROM entry_moves
WHERE org_id = :org_id AND move_id = :move_id AND coalesce(kept, reason) IS NOT NULL
ORDER BY entry_id
LIMIT :limit;

-- list_moved --
-- The first entries that were moved, with what was predicted for them.
SELECT entry_id, from_version, from_node_id, node_id, until, outcome, next_node_id, ends FROM entry_moves
WHERE org_id = :org_id AND move_id = :move_id AND moved_at IS NOT NULL
ORDER BY entry_id
LIMIT :limit;

-- list_entry_moves --
-- The moves of an entry, in order.
SELECT m.move_id AS id, v.version AS to_version, m.from_version, m.from_node_id, m.node_id, m.moved_at AS at, m.moved_back_at, m.until, m.outcome,
       m.next_node_id, m.ends, m.reason
FROM entry_moves m
JOIN moves v ON v.org_id = :org_id AND v.id = m.move_id
WHERE m.org_id = :org_id AND m.entry_id = :entry_id AND (m.moved_at IS NOT NULL OR m.reason IS NOT NULL)
ORDER BY m.move_id;

-- list_former_versions --
-- The versions other than one that entries of an automation run which have not ended.
SELECT DISTINCT automation_version
FROM (
    SELECT automation_version FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state IN ('pending', 'waiting')
    UNION ALL
    SELECT automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'retrying'
    UNION ALL
    SELECT automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'running'
    UNION ALL
    SELECT automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'paused'
) live
WHERE automation_version <> :version
ORDER BY automation_version;

-- Pages ------------------------------------------------------------------------------------------------------------
-- A page is a range of the primary key of the entries of a move, so it does not depend on what happens to the entries meanwhile.

-- add_move_entries --
-- Fix the entries of a move: those of other versions that have not ended. Entries without a version end without a step.
INSERT INTO entry_moves (org_id, move_id, entry_id, from_version)
SELECT :org_id ::bigint, :move_id ::uuid, id, automation_version
FROM (
    SELECT id, automation_version FROM entries
    WHERE org_id = :org_id ::bigint AND automation_id = :automation_id ::uuid AND state IN ('pending', 'waiting')
    UNION ALL
    SELECT id, automation_version FROM entries WHERE org_id = :org_id ::bigint AND automation_id = :automation_id ::uuid AND state = 'retrying'
    UNION ALL
    SELECT id, automation_version FROM entries WHERE org_id = :org_id ::bigint AND automation_id = :automation_id ::uuid AND state = 'running'
    UNION ALL
    SELECT id, automation_version FROM entries WHERE org_id = :org_id ::bigint AND automation_id = :automation_id ::uuid AND state = 'paused'
) live
WHERE automation_version <> :version ::integer
ON CONFLICT (org_id, move_id, entry_id) DO NOTHING
RETURNING true;

-- list_page --
-- The next entries of a move that are still to be moved, with their contacts.
SELECT m.entry_id, e.contact_id
FROM entry_moves m
CROSS JOIN LATERAL (
    SELECT contact_id FROM entries WHERE org_id = :org_id AND id = m.entry_id LIMIT 1    -- key by key
) AS e
WHERE m.org_id = :org_id AND m.move_id = :move_id AND m.entry_id > :after ::uuid AND m.moved_at IS NULL AND m.reason IS NULL
ORDER BY m.entry_id
LIMIT :limit;

-- list_page_back --
-- The next entries of a move that are still to be moved back, with their contacts.
SELECT m.entry_id, e.contact_id
FROM entry_moves m
CROSS JOIN LATERAL (
    SELECT contact_id FROM entries WHERE org_id = :org_id AND id = m.entry_id LIMIT 1    -- key by key
) AS e
WHERE m.org_id = :org_id AND m.move_id = :move_id AND m.entry_id > :after ::uuid
    AND m.moved_at IS NOT NULL AND m.moved_back_at IS NULL AND m.kept IS NULL
ORDER BY m.entry_id
LIMIT :limit;

-- list_waiting_page --
-- The next entries of an automation on other versions that have not ended, for a preview.
SELECT id, contact_id
FROM (
    SELECT id, contact_id, automation_version FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state IN ('pending', 'waiting')
    UNION ALL
    SELECT id, contact_id, automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'retrying'
    UNION ALL
    SELECT id, contact_id, automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'running'
    UNION ALL
    SELECT id, contact_id, automation_version FROM entries WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'paused'
) live
WHERE automation_version <> :version
ORDER BY id
LIMIT :limit;

-- lock_moving_entries --
-- The entries of a page, locked until commit; with where this move found them and put them, once it has moved them.
SELECT e.id AS entry_id, e.automation_id, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.automation_version AS version, e.step,
       e.attempts, e.state, e.outcome, coalesce(e.turn_at, e.due_at) AS due_at, e.turn_at IS NOT NULL AS put_back, e.since, e.since_id,
       e.activation, m.from_version, m.from_node_id, m.from_step, m.node_id AS moved_to
FROM entries e
LEFT JOIN entry_moves m ON m.org_id = :org_id AND m.move_id = :move_id ::uuid AND m.entry_id = e.id
WHERE e.org_id = :org_id AND e.id = ANY (:entry_ids ::uuid[])
ORDER BY e.id
FOR UPDATE OF e;

-- read_moving_entries --
-- The entries of a page, for a preview.
SELECT e.id AS entry_id, e.automation_id, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.automation_version AS version, e.step,
       e.attempts, e.state, e.outcome, coalesce(e.turn_at, e.due_at) AS due_at, e.turn_at IS NOT NULL AS put_back, e.since, e.since_id,
       e.activation, NULL::integer AS from_version, NULL::text AS from_node_id, NULL::integer AS from_step, NULL::text AS moved_to
FROM unnest(:entry_ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT * FROM entries WHERE org_id = :org_id AND id = k.id LIMIT 1    -- key by key
) AS e
ORDER BY e.id;

-- list_passed_nodes --
-- The nodes that entries have passed: at which they took a step other than waiting or failing.
SELECT s.entry_id ::text, s.node_id
FROM unnest(:entry_ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT DISTINCT entry_id, node_id FROM entry_steps
    WHERE org_id = :org_id AND entry_id = k.id AND outcome NOT IN ('waiting', 'failed')
) AS s;

-- move_entries --
-- Move locked entries to a version and a node, and make them due at a moment. An entry that was put back until its turn and is due
-- keeps its place.
WITH m AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:entry_id ::uuid[], :version ::integer[], :node_id ::text[], :step ::integer[], :due_at ::timestamptz[], :awaits ::text[],
                :is_due ::boolean[])
        AS m (id, version, node_id, step, due_at, awaits, is_due)
)
UPDATE entries e
SET automation_version = m.version, node_id = m.node_id, step = m.step, awaits = string_to_array(m.awaits, ','),    -- names contain no commas
    started_version = nullif(coalesce(e.started_version, e.automation_version), m.version),
    due_at = CASE WHEN m.is_due AND e.turn_at IS NOT NULL THEN e.due_at ELSE m.due_at END,
    turn_at = CASE WHEN m.is_due THEN e.turn_at END,
    updated_at = :now ::timestamptz
FROM m
WHERE e.org_id = m.org_id AND e.id = m.id
RETURNING true;

-- record_moved --
-- Record what a page did: entries that were moved, and reasons why others were not.
WITH r AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:entry_id ::uuid[], :from_version ::integer[], :from_node_id ::text[], :from_step ::integer[], :node_id ::text[],
                :until ::timestamptz[], :outcome ::text[], :next_node_id ::text[], :ends ::text[], :reason ::text[])
        AS r (id, from_version, from_node_id, from_step, node_id, until, outcome, next_node_id, ends, reason)
)
UPDATE entry_moves m
SET from_version = r.from_version, from_node_id = r.from_node_id, from_step = r.from_step, node_id = r.node_id, until = r.until,
    outcome = r.outcome, next_node_id = r.next_node_id, ends = r.ends, reason = r.reason,
    moved_at = CASE WHEN r.reason IS NULL THEN :now ::timestamptz END
FROM r
WHERE m.org_id = r.org_id AND m.move_id = :move_id ::uuid AND m.entry_id = r.id
RETURNING true;

-- record_moved_back --
-- Record what a page of an undo did.
WITH r AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:entry_id ::uuid[], :reason ::text[]) AS r (id, reason)
)
UPDATE entry_moves m
SET kept = r.reason, moved_back_at = CASE WHEN r.reason IS NULL THEN :now ::timestamptz END
FROM r
WHERE m.org_id = r.org_id AND m.move_id = :move_id ::uuid AND m.entry_id = r.id
RETURNING true;
