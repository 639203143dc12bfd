-- Automations, their versions, and the record of who changed what.

-- insert_automation --
-- A new automation at revision 1.
INSERT INTO automations (org_id, id, name, trigger_spec, graph, active, revision, created_at, updated_at)
VALUES (:org_id, :id, :name, :trigger_spec ::jsonb, :graph ::jsonb, :active, 1, :created_at, :created_at)
RETURNING org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
          paused_at, live_since, earlier_confirmations;

-- find_automation --
-- One automation.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND id = :id;

-- lock_automation --
-- One automation, held until commit: changes of it happen one after the other.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND id = :id
FOR UPDATE;

-- share_automation --
-- Whether an automation takes entries; that stays so until commit.
SELECT active
FROM automations
WHERE org_id = :org_id AND id = :id
FOR SHARE;

-- list_automations --
-- The newest automations, archived or not, of one name when it is given, older than one when it is.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND (archived_at IS NOT NULL) = :archived AND (:name ::text IS NULL OR name = :name)
    AND (:before ::uuid IS NULL OR id < :before ::uuid)
ORDER BY id DESC
LIMIT :most;

-- update_automation --
-- Write a changed automation whole; the caller holds its lock.
UPDATE automations
SET name = :name, trigger_spec = :trigger_spec ::jsonb, graph = :graph ::jsonb, active = :active,
    stint = stint + (:active AND NOT active)::integer,
    published_version = :published_version, revision = :revision, archived_at = :archived_at, updated_at = :updated_at,
    paused_at = :paused_at, live_since = :live_since, earlier_confirmations = :earlier_confirmations
WHERE org_id = :org_id AND id = :id
RETURNING org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
          paused_at, live_since, earlier_confirmations;

-- insert_version --
-- Publish: a version is written once and never changed.
-- `awaits` pre-selects the events for which ingest looks at waiting entries; what they mean to them, the language decides.
INSERT INTO automation_versions (org_id, automation_id, version, trigger_spec, graph, published_at, published_by, awaits)
SELECT :org_id ::bigint, :automation_id ::uuid, :version ::integer, :trigger_spec ::jsonb, :graph ::jsonb, :published_at ::timestamptz,
       :published_by ::uuid, ARRAY(
           SELECT lower(name #>> '{}')
           FROM jsonb_path_query(:graph ::jsonb, '$.nodes[*] ? (@.type == "wait_for_event").data.event') AS name
           UNION
           SELECT lower(:graph ::jsonb #>> '{settings,goal,event}')
           WHERE :graph ::jsonb #>> '{settings,goal,event}' IS NOT NULL)
RETURNING true;

-- find_version --
-- One published version.
SELECT version, trigger_spec, graph, published_at, published_by
FROM automation_versions
WHERE org_id = :org_id AND automation_id = :automation_id AND version = :version;

-- list_versions --
-- The newest published versions.
SELECT version, trigger_spec, graph, published_at, published_by
FROM automation_versions
WHERE org_id = :org_id AND automation_id = :automation_id
ORDER BY version DESC
LIMIT :most;

-- count_earlier --
-- Where the entries stand that have not ended and run another version than the given one; each lane has an index of its own.
SELECT automation_version, node_id, state, count(*)
FROM (
    SELECT automation_version, node_id, state FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state IN ('pending', 'waiting')
    UNION ALL
    SELECT automation_version, node_id, state FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'retrying'
    UNION ALL
    SELECT automation_version, node_id, state FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'running'
    UNION ALL
    SELECT automation_version, node_id, state FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'paused'
) live
WHERE automation_version IS DISTINCT FROM :version
GROUP BY automation_version, node_id, state
ORDER BY automation_version DESC NULLS LAST, node_id NULLS FIRST, state;

-- raise_epoch --
-- Tell ingest that the automations of the organization changed.
INSERT INTO automation_epochs (org_id, epoch) VALUES (:org_id, 1)
ON CONFLICT (org_id) DO UPDATE SET epoch = automation_epochs.epoch + 1;

-- insert_audit --
-- Which key did what to what, and when.
INSERT INTO audit_log (org_id, id, key_id, action, subject_id, detail, created_at)
VALUES (:org_id, :id, :key_id, :action, :subject_id, :detail ::jsonb, :created_at);

-- list_changes --
-- Who did what to an automation, the newest first, with the name of the key.
SELECT a.created_at, a.action, a.key_id ::text, k.name, a.detail
FROM audit_log a
LEFT JOIN api_keys k ON k.org_id = :org_id AND k.id = a.key_id
WHERE a.org_id = :org_id AND a.subject_id = :automation_id
ORDER BY a.id DESC
LIMIT :most;

-- cancel_entries --
-- Cancel the next entries (by id) of an automation that no worker holds, all of them or those that rest or were due by a moment;
-- how many, and the last id looked at.
-- What they still had to send is skipped; what was on its way when its worker stopped may have arrived.
WITH stopped AS (
    SELECT id, state
    FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND id > :after ::uuid
        AND state IN ('pending', 'waiting', 'retrying', 'paused')
        AND (:due_by ::timestamptz IS NULL OR state = 'paused' OR due_at <= :due_by ::timestamptz)
    ORDER BY id
    LIMIT :most
    FOR UPDATE
), moved AS (
    UPDATE entries e
    SET state = 'cancelled', outcome = :outcome, updated_at = :at
    FROM stopped s
    WHERE e.org_id = :org_id AND e.id = s.id
    RETURNING e.id, s.state
), recorded AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id, id, state, 'cancelled', :at, :outcome FROM moved
    RETURNING true
), unsent AS (
    UPDATE messages m
    SET status = CASE WHEN m.status = 'queued' AND NOT m.in_doubt THEN 'skipped' ELSE 'unknown' END
    FROM moved r
    WHERE m.org_id = :org_id AND m.entry_id = r.id AND r.state IN ('pending', 'retrying', 'paused') AND m.status IN ('queued', 'sending')
    RETURNING m.id, m.channel, m.status
), told AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT :org_id, :at, id, status, channel, :outcome FROM unsent
    RETURNING true
)
SELECT count(*), max(id ::text) FROM moved;

-- call_off --
-- Note on entries that workers hold how they end: before their next step.
UPDATE entries SET outcome = :outcome
WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'running';

-- left_resting --
-- Automations, of any organization, that are not paused and have entries that rest; whether they are active, or archived.
SELECT a.org_id, a.id ::text, a.active, a.archived_at IS NOT NULL
FROM automations a
CROSS JOIN LATERAL (
    SELECT FROM entries e WHERE e.org_id = a.org_id AND e.automation_id = a.id AND e.state = 'paused'
    LIMIT 1    -- a probe for each: together they would be looked for among all that rest
) AS resting
WHERE a.paused_at IS NULL
ORDER BY a.org_id, a.id
LIMIT :most;

-- resume_entries --
-- Let the next entries (by id) go on that came due while their automation was paused; the last id, if there were any.
WITH resting AS (
    SELECT id FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'paused' AND id > :after ::uuid
    ORDER BY id
    LIMIT :most
    FOR UPDATE
), moved AS (
    UPDATE entries e
    SET state = 'pending', due_at = :at, updated_at = :at
    FROM resting r
    WHERE e.org_id = :org_id AND e.id = r.id
    RETURNING e.id
), recorded AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)
    SELECT :org_id, id, 'paused', 'pending', :at FROM moved
    RETURNING true
)
SELECT count(*), max(id ::text) FROM moved;
