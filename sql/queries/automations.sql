-- Automations: drafts and versions, the audit log, cancelling and resuming entries, goals, and entries as users see
-- them.

-- Automations and versions -----------------------------------------------------------------------------------------

-- insert_automation --
-- A new automation at revision 1.
INSERT INTO automations (org_id, id, name, trigger_spec, graph, active, revision, created_at, updated_at,
                         paused_at)
VALUES (:org_id, :id, :name, :trigger_spec ::jsonb, :graph ::jsonb, :active, 1, :created_at, :created_at, :paused_at)
RETURNING org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
          paused_at, live_since, earlier_confirmations;

-- find_automation --
-- One automation.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND id = :automation_id;

-- lock_automation --
-- One automation, locked until commit: its changes happen one after the other.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND id = :automation_id
FOR UPDATE;

-- lock_automation_shared --
-- Whether an automation is active; it stays so until commit.
SELECT active
FROM automations
WHERE org_id = :org_id AND id = :automation_id
FOR SHARE;

-- list_automations --
-- The newest automations, archived or not; of one name, in one state, or older than one, if given.
SELECT org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
       paused_at, live_since, earlier_confirmations
FROM automations
WHERE org_id = :org_id AND (archived_at IS NOT NULL) = :archived AND (:name ::text IS NULL OR name = :name)
    AND (:published ::boolean IS NULL OR (published_version IS NOT NULL) = :published)
    AND (:active ::boolean IS NULL OR active = :active)
    AND (:paused ::boolean IS NULL OR (paused_at IS NOT NULL) = :paused)
    AND (:before ::uuid IS NULL OR id < :before ::uuid)
ORDER BY id DESC
LIMIT :limit;

-- update_automation --
-- Write all of a changed automation; the caller holds its lock. Each activation gets the next number, so entries of
-- an earlier one can be recognised.
UPDATE automations
SET name = :name, trigger_spec = :trigger_spec ::jsonb, graph = :graph ::jsonb, active = :active,
    activation = activation + (:active AND NOT active)::integer,
    published_version = :published_version, revision = :revision, archived_at = :archived_at, updated_at = :updated_at,
    paused_at = :paused_at, live_since = :live_since, earlier_confirmations = :earlier_confirmations
WHERE org_id = :org_id AND id = :id
RETURNING org_id, id, name, trigger_spec, graph, active, published_version, revision, archived_at, created_at, updated_at,
          paused_at, live_since, earlier_confirmations;

-- insert_version --
-- Publish: a version is written once and never changed. `awaits` preselects the events for which ingest looks at
-- waiting entries; the language decides what the events mean to them.
INSERT INTO automation_versions (org_id, automation_id, version, trigger_spec, graph, published_at, published_by, awaits)
SELECT :org_id ::bigint, :automation_id ::uuid, :version ::integer, :trigger_spec ::jsonb, :graph ::jsonb, :published_at ::timestamptz,
       :published_by ::uuid, :awaits ::text[]
RETURNING true;

-- has_older_process --
-- Whether a process of a version before a migration is connected; application names begin with `name` and the newest migration.
SELECT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(application_name, :name)
        AND substr(application_name, length(:name ::text) + 1) < :migration
);

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
LIMIT :limit;

-- bump_epoch --
-- Tell ingest that the automations of the organization changed.
INSERT INTO automation_epochs (org_id, epoch) VALUES (:org_id, 1)
ON CONFLICT (org_id) DO UPDATE SET epoch = automation_epochs.epoch + 1;

-- find_stop --
-- Since when everything is stopped; null if it is not.
SELECT stopped_at FROM automation_epochs WHERE org_id = :org_id;

-- set_stop --
-- Note since when everything is stopped (null: it runs again), and tell ingest that automations changed.
INSERT INTO automation_epochs (org_id, epoch, stopped_at) VALUES (:org_id, 1, :stopped_at)
ON CONFLICT (org_id) DO UPDATE SET epoch = automation_epochs.epoch + 1, stopped_at = excluded.stopped_at;

-- pause_automations --
-- Pause all automations that are active and not paused. Their drafts do not change, so their revisions stay.
UPDATE automations SET paused_at = :at, updated_at = :at
WHERE org_id = :org_id AND active AND paused_at IS NULL
RETURNING id;

-- find_stopped --
-- The automations that were paused at one moment.
SELECT id FROM automations WHERE org_id = :org_id AND paused_at = :paused_at ORDER BY id;

-- resume_automations --
-- End the pause of the automations that were paused at one moment; logs of earlier blocks do not start them.
UPDATE automations SET paused_at = NULL, live_since = :at, updated_at = :at
WHERE org_id = :org_id AND paused_at = :paused_at
RETURNING id;

-- count_stopped --
-- Of the active automations (or one of them) that were paused at a moment, or are not paused if it is null: their
-- number, that of their entries that have not ended, and those of messages that wait for another attempt and of
-- messages that are being sent, by running entries. At most `limit` entries are looked at, running ones first, so that the
-- answer to a stop does not wait for a count of millions. One SELECT per state, because each has its own index.
WITH stopped AS MATERIALIZED (
    SELECT id FROM automations
    WHERE org_id = :org_id AND active AND paused_at IS NOT DISTINCT FROM :paused_at ::timestamptz
        AND (:automation_id ::uuid IS NULL OR id = :automation_id)
), live AS MATERIALIZED (
    SELECT e.id, e.attempts, e.state
    FROM (
        SELECT id, automation_id, attempts, state FROM entries WHERE org_id = :org_id AND state = 'running'
        UNION ALL
        SELECT id, automation_id, attempts, state FROM entries WHERE org_id = :org_id AND state = 'retrying'
        UNION ALL
        SELECT id, automation_id, attempts, state FROM entries WHERE org_id = :org_id AND state IN ('pending', 'waiting')
        UNION ALL
        SELECT id, automation_id, attempts, state FROM entries WHERE org_id = :org_id AND state = 'paused'
    ) e
    JOIN stopped s ON s.id = e.automation_id
    LIMIT :limit
), messages_of_live AS (
    SELECT m.status = 'sending' AND e.state = 'running' AS leaving
    FROM (SELECT id, state FROM live WHERE attempts > 0) e    -- entries without an attempt have no message
    CROSS JOIN LATERAL (SELECT status FROM messages WHERE org_id = :org_id AND entry_id = e.id AND channel <> 'inapp') m
    WHERE m.status IN ('queued', 'sending')
)
SELECT (SELECT count(*) FROM stopped), (SELECT count(*) FROM live),
       (SELECT count(*) FROM messages_of_live WHERE NOT leaving), (SELECT count(*) FROM messages_of_live WHERE leaving);

-- list_using_automations --
-- The automations whose graph contains a name in quotes, in their draft or in their live version.
SELECT a.id, a.name, CASE WHEN strpos(a.graph ::text, :quoted) > 0 THEN a.graph END AS draft, v.version,
       CASE WHEN strpos(v.graph ::text, :quoted) > 0 THEN v.graph END AS live
FROM automations a
LEFT JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND (strpos(a.graph ::text, :quoted) > 0 OR strpos(v.graph ::text, :quoted) > 0)
ORDER BY a.name, a.id;

-- Audit log --------------------------------------------------------------------------------------------------------

-- insert_audit --
-- Record a change.
INSERT INTO audit_log (org_id, id, key_id, action, subject_id, detail, created_at)
VALUES (:org_id, :id, :key_id, :action, :subject_id, :detail ::jsonb, :created_at);

-- insert_audits --
-- Record the same change of several subjects.
INSERT INTO audit_log (org_id, id, key_id, action, subject_id, detail, created_at)
SELECT :org_id ::bigint, id, :key_id ::uuid, :action ::text, subject_id, :detail ::jsonb, :created_at ::timestamptz
FROM unnest(:ids ::uuid[], :subject_ids ::uuid[]) AS a (id, subject_id)
RETURNING true;

-- list_audit --
-- The newest changes before one (its id); of some kinds, one subject or one action, if given. With the names of the
-- key that made them and of the automation or segment they are about, and the live version before and after.
SELECT a.created_at AS at, a.action, coalesce(nullif(k.name, ''), a.key_id ::text, '') AS by, a.key_id, a.detail, a.id, k.prefix || '…' || k.last4 AS key,
       a.subject_id, coalesce(m.name, s.name) AS subject, nullif(v.version - 1, 0) AS from_version, v.version AS to_version
FROM audit_log a
CROSS JOIN LATERAL (    -- each publication or rollback makes the next version the live one; versions have no gaps
    SELECT CASE WHEN a.action IN ('automation.publish', 'automation.rollback') THEN (a.detail ->> 'version') ::integer END AS version
) v
LEFT JOIN api_keys k ON k.org_id = :org_id AND k.id = a.key_id
LEFT JOIN automations m ON m.org_id = :org_id AND m.id = a.subject_id
LEFT JOIN segments s ON s.org_id = :org_id AND s.id = a.subject_id
WHERE a.org_id = :org_id
    AND (:kinds ::text[] IS NULL OR split_part(a.action, '.', 1) = ANY (:kinds ::text[]))
    AND (:subject_id ::uuid IS NULL OR a.subject_id = :subject_id ::uuid)
    AND (:action ::text IS NULL OR a.action = :action)
    AND (:before ::uuid IS NULL OR a.id < :before ::uuid)
ORDER BY a.id DESC
LIMIT :limit;

-- list_changes --
-- The newest changes of an automation, with the names of the keys.
SELECT a.created_at AS at, a.action, coalesce(nullif(k.name, ''), a.key_id ::text, '') AS by, a.key_id, a.detail
FROM audit_log a
LEFT JOIN api_keys k ON k.org_id = :org_id AND k.id = a.key_id
WHERE a.org_id = :org_id AND a.subject_id = :automation_id
ORDER BY a.id DESC
LIMIT :limit;

-- Cancelling and resuming entries ----------------------------------------------------------------------------------

-- count_entries_of_other_versions --
-- Unfinished entries that run another version than the given one, by version, node and state. One SELECT per state,
-- because each has its own index.
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

-- cancel_entries --
-- Cancel the next entries (by id) of an automation that no worker holds: all of them, or those that are paused or
-- were due by a moment. Returns how many, and the last id. Queued messages are skipped; a message that was being sent when
-- its worker stopped may have arrived.
WITH stopped AS (
    SELECT id, state
    FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND id > :after ::uuid
        AND state IN ('pending', 'waiting', 'retrying', 'paused')
        AND (:due_by ::timestamptz IS NULL OR state = 'paused' OR coalesce(turn_at, due_at) <= :due_by ::timestamptz)
    ORDER BY id
    LIMIT :limit
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
), outcomes AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT :org_id, :at, id, status, channel, :outcome FROM unsent
    RETURNING true
)
SELECT count(*), max(id ::text) FROM moved;

-- cancel_claimed_entries --
-- Mark entries that workers hold with the outcome they end with before their next step.
UPDATE entries SET outcome = :outcome
WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'running';

-- find_stranded_entries --
-- Automations, of any organization, that are not paused but have paused entries.
SELECT a.org_id, a.id AS automation_id, a.active, a.archived_at IS NOT NULL AS archived
FROM automations a
CROSS JOIN LATERAL (
    SELECT FROM entries e WHERE e.org_id = a.org_id AND e.automation_id = a.id AND e.state = 'paused'
    LIMIT 1    -- one probe per automation; joined, this would read all paused entries
) AS paused
WHERE a.paused_at IS NULL
ORDER BY a.org_id, a.id
LIMIT :limit;

-- resume_entries --
-- Resume the next paused entries (by id) of an automation; their number, that of their messages that wait for another attempt, and the
-- last id.
WITH paused AS (
    SELECT id FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id AND state = 'paused' AND id > :after ::uuid
    ORDER BY id
    LIMIT :limit
    FOR UPDATE
), moved AS (
    UPDATE entries e
    SET state = 'pending', due_at = :at, updated_at = :at
    FROM paused p
    WHERE e.org_id = :org_id AND e.id = p.id
    RETURNING e.id, e.attempts
), unsent AS (
    SELECT FROM (SELECT id FROM moved WHERE attempts > 0) e    -- entries without an attempt have no message
    CROSS JOIN LATERAL (SELECT status FROM messages WHERE org_id = :org_id AND entry_id = e.id AND channel <> 'inapp') m
    WHERE m.status IN ('queued', 'sending')
), recorded AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)
    SELECT :org_id, id, 'paused', 'pending', :at FROM moved
    RETURNING true
)
SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM unsent), (SELECT max(id ::text) FROM moved);

-- Goals ------------------------------------------------------------------------------------------------------------
-- How many contacts that entered an automation reached its goal. A contact counts once, from its first admitted
-- entry ever.

-- list_goal_entries --
-- The next entries of an automation, newest first.
SELECT e.id ::text, coalesce(e.started_version, e.automation_version, 0) AS version, e.contact_id ::text, e.event_id ::text, e.event_created_at AS at,
       coalesce(e.outcome = 'holdout', false) AS held_out
FROM entries e
WHERE e.org_id = :org_id AND e.automation_id = :automation_id AND e.id >= :since_id ::uuid AND e.id < :before_id ::uuid
ORDER BY e.id DESC    -- the column, not its text: this order is that of an index
LIMIT :limit;

-- find_first_entries --
-- For each contact: its first admitted entry, and whether it was both in the holdout and outside, because two
-- contacts were merged. An entry was admitted if it reached a node (or died) and was not refused there: at that
-- point the holdout is decided.
SELECT k.contact_id ::text, (array_agg(e.id ORDER BY e.created_at, e.id))[1] ::text, bool_or(e.held_out) <> bool_and(e.held_out)
FROM unnest(:contact_ids ::uuid[]) AS k (contact_id)
CROSS JOIN LATERAL (
    SELECT e.id, e.created_at, coalesce(e.outcome = 'holdout', false) AS held_out
    FROM entries e
    WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = :automation_id
        AND (e.node_id IS NOT NULL OR e.state = 'dead') AND coalesce(e.outcome, '') NOT IN ('reentry', 'loop_guard', 'joined')
    ORDER BY e.created_at, e.id LIMIT :limit    -- the order of the index on contacts
) e
GROUP BY k.contact_id;

-- list_goal_events --
-- For each contact: the next events of the goal's name after an event, until a moment, and the next logs about it
-- with that name. `forms` (empty: any) are JSON objects, one of which the payload must contain.
SELECT k.contact_id, g.id, :goal ::text AS event, g.occurred_at, g.created_at, g.payload, g.idempotency_key, g.wallet_address, g.email,
       g.external_id
FROM unnest(:contact_id ::uuid[], :after_id ::uuid[], :after ::timestamptz[], :until ::timestamptz[])
    AS k (contact_id, after_id, after, until)
CROSS JOIN LATERAL (
    (SELECT v.id, v.occurred_at, v.created_at, CASE WHEN :with_payload THEN v.payload ELSE 'null' END AS payload, v.idempotency_key,
            v.wallet_address, v.email, v.external_id
     FROM events v
     WHERE v.org_id = :org_id AND v.contact_id = k.contact_id
         AND v.event || '' = :goal    -- keeps the planner from the index by name, which has the events of all contacts
         AND v.created_at >= k.after AND v.created_at <= k.until AND (v.created_at, v.id) > (k.after, k.after_id)
         AND (:forms ::jsonb[] = '{}' OR v.payload @> ANY (:forms ::jsonb[]))
     ORDER BY v.created_at, v.id
     LIMIT :limit)
    UNION ALL
    (SELECT v.id, v.occurred_at, v.created_at, CASE WHEN :with_payload THEN v.payload ELSE 'null' END, v.idempotency_key,
            v.wallet_address, v.email, v.external_id
     FROM log_events v
     WHERE :goal LIKE '0x%:%' AND v.org_id = :org_id AND v.contact_id = k.contact_id AND NOT v.removed AND v.event = :goal
         AND v.created_at >= k.after AND v.created_at <= k.until AND (v.created_at, v.id) > (k.after, k.after_id)
         AND (:forms ::jsonb[] = '{}' OR v.payload @> ANY (:forms ::jsonb[]))
     ORDER BY v.created_at, v.id
     LIMIT :limit)
    ORDER BY created_at, id
    LIMIT :limit
) g
ORDER BY k.contact_id, g.created_at, g.id;

-- Entries as people see them ---------------------------------------------------------------------------------------

-- list_entries --
-- The newest entries of the organization.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event, s.event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, coalesce(e.turn_at, e.due_at) AS due_at, e.created_at, e.updated_at
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
LEFT JOIN starts s ON s.org_id = e.org_id AND s.id = e.event_id
WHERE e.org_id = :org_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :limit;

-- list_entries_of_automation --
-- The newest entries of one automation.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event, s.event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, coalesce(e.turn_at, e.due_at) AS due_at, e.created_at, e.updated_at
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
LEFT JOIN starts s ON s.org_id = e.org_id AND s.id = e.event_id
WHERE e.org_id = :org_id AND e.automation_id = :automation_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :limit;

-- list_entries_of_event --
-- The entries of one event. The index is by (automation, event), so every automation is looked up.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event, s.event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, coalesce(e.turn_at, e.due_at) AS due_at, e.created_at, e.updated_at
FROM automations a
JOIN entries e ON e.org_id = a.org_id AND e.automation_id = a.id AND e.event_id = :event_id ::uuid
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
LEFT JOIN starts s ON s.org_id = e.org_id AND s.id = e.event_id
WHERE a.org_id = :org_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
    AND (:event ::text IS NULL OR coalesce(v.event, o.event, s.event) = :event)
ORDER BY e.id DESC
LIMIT :limit;

-- list_entries_by_name --
-- The newest entries of events of one name, among the newest 1,000 of these events.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, v.event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, coalesce(e.turn_at, e.due_at) AS due_at, e.created_at, e.updated_at
FROM (
    (SELECT id, event FROM events WHERE org_id = :org_id AND event = :event ORDER BY created_at DESC LIMIT 1000)
    UNION ALL
    (SELECT id, event FROM onchain_events WHERE org_id = :org_id AND event = :event ORDER BY id DESC LIMIT 1000)
    UNION ALL
    (SELECT id, event FROM starts WHERE org_id = :org_id AND event = :event ORDER BY id DESC LIMIT 1000)
) v
CROSS JOIN (SELECT id FROM automations WHERE org_id = :org_id) a
JOIN entries e ON e.org_id = :org_id AND e.automation_id = a.id AND e.event_id = v.id
WHERE (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :limit;

-- find_event_by_key --
-- The event that holds an idempotency key, or the log with this key in `log_events`: `1:0x…:7`. After a reorganization
-- it returns the log that has the key now.
SELECT event_id FROM idempotency_keys WHERE org_id = :org_id AND key_digest = :key_digest ::uuid
UNION ALL
(SELECT o.id FROM regexp_match(lower(:key), '^([0-9]{1,18}):(0x[0-9a-f]{64}):([0-9]{1,9})$') AS place
 JOIN onchain_events o ON o.org_id = :org_id AND o.chain_id = place[1]::bigint AND o.tx_hash = place[2] AND o.log_index = place[3]::integer
 ORDER BY o.removed, o.id DESC)
LIMIT 1;

-- find_entry --
-- One entry, with the event that started it.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.contract_event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, coalesce(e.turn_at, e.due_at) AS due_at, e.created_at, e.updated_at,
       coalesce(v.idempotency_key, o.idempotency_key) AS idempotency_key, coalesce(v.occurred_at, o.occurred_at) AS occurred_at,
       coalesce(v.payload, o.payload) AS payload
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN starting_events o ON o.org_id = e.org_id AND o.id = e.event_id
WHERE e.org_id = :org_id AND e.id = :entry_id;

-- list_steps --
-- The steps of an entry, in order.
SELECT node_id, kind, at, outcome, attempt, handle, detail
FROM entry_steps
WHERE org_id = :org_id AND entry_id = :entry_id
ORDER BY claim, step;

-- list_transitions --
-- The transitions of an entry between states, in order.
SELECT from_state, to_state, at, reason
FROM entry_transitions
WHERE org_id = :org_id AND entry_id = :entry_id
ORDER BY seq;

-- graphs_of_entries --
-- The graphs that entries run, and those that they ran before they were moved, each once.
SELECT v.graph, array_agg(e.id ::text)
FROM (
    SELECT id, automation_id, automation_version AS version FROM entries WHERE org_id = :org_id AND id = ANY (:entry_ids ::uuid[])
    UNION
    SELECT n.id, n.automation_id, m.from_version
    FROM entry_moves m JOIN entries n ON n.org_id = :org_id AND n.id = m.entry_id
    WHERE m.org_id = :org_id AND m.entry_id = ANY (:entry_ids ::uuid[]) AND m.moved_at IS NOT NULL
) e
JOIN automation_versions v ON v.org_id = :org_id AND v.automation_id = e.automation_id AND v.version = e.version
GROUP BY v.org_id, v.automation_id, v.version;

-- count_entries_by_node --
-- The newest entries of an automation, counted by state and node. Those from before its first publication did nothing.
SELECT state, node_id, count(*)
FROM (
    SELECT state, node_id, outcome FROM entries
    WHERE org_id = :org_id AND automation_id = :automation_id ORDER BY id DESC LIMIT :limit
) e
WHERE outcome IS DISTINCT FROM 'no_published_version'
GROUP BY state, node_id;

-- count_step_outcomes --
-- The outcomes at each node among the newest entries of an automation.
SELECT s.node_id, s.outcome, count(*)
FROM (
    SELECT id FROM entries WHERE org_id = :org_id AND automation_id = :automation_id ORDER BY id DESC LIMIT :limit
) e
JOIN entry_steps s ON s.org_id = :org_id AND s.entry_id = e.id
GROUP BY s.node_id, s.outcome
ORDER BY s.node_id, s.outcome;

-- count_messages_by_node --
-- The messages of the newest entries of an automation, counted as by `count_messages_of_entries`. The planner hashes the clicks of the
-- organization, or looks them up for each message if they are too many; OFFSET 0 lets it know how many messages there are.
SELECT node_id, channel, status, feedback, cause, count(*) AS messages, count(*) FILTER (WHERE is_clicked) AS clicked
FROM (
    SELECT m.node_id, m.channel, m.status, m.feedback,
           CASE WHEN m.status = 'skipped' THEN coalesce((
               SELECT detail ->> 'cause' FROM entry_steps
               WHERE org_id = :org_id AND entry_id = m.entry_id AND node_id = m.node_id AND outcome IN ('skipped', 'undeliverable')
               ORDER BY claim DESC, step DESC LIMIT 1), e.outcome) END AS cause,
           m.track_clicks AND EXISTS (
               SELECT FROM events c
               WHERE c.org_id = :org_id AND c.event = 'link.clicked' AND c.contact_id = m.contact_id
                   AND c.payload ->> 'messageId' = m.id ::text) AS is_clicked
    FROM (
        SELECT id, outcome FROM entries WHERE org_id = :org_id AND automation_id = :automation_id ORDER BY id DESC LIMIT :limit
    ) e
    JOIN messages m ON m.org_id = :org_id AND m.entry_id = e.id
    OFFSET 0
) m
GROUP BY 1, 2, 3, 4, 5;

-- Replaying dead entries -------------------------------------------------------------------------------------------

-- count_dead --
-- The newest dead entries of each automation (or of one) by cause and node: how many, the most attempts, the last
-- error, and when they died.
SELECT a.id AS automation_id, a.name AS automation, a.active, e.outcome AS cause, e.node_id, count(*) AS entries, max(e.attempts) AS attempts,
       (array_agg(e.last_error ORDER BY e.updated_at DESC, e.id DESC))[1] AS last_error, min(e.updated_at) AS first_at, max(e.updated_at) AS last_at
FROM automations a
CROSS JOIN LATERAL (
    SELECT id, outcome, node_id, attempts, last_error, updated_at
    FROM entries
    WHERE org_id = :org_id AND automation_id = a.id AND state = 'dead'
    ORDER BY id DESC
    LIMIT :limit
) e
WHERE a.org_id = :org_id AND (:automation_id ::uuid IS NULL OR a.id = :automation_id ::uuid)
GROUP BY a.id, a.name, a.active, e.outcome, e.node_id
ORDER BY max(e.updated_at) DESC, a.id, e.outcome, e.node_id;

-- lock_entry --
-- State and outcome of an entry, locked until commit.
SELECT state, outcome
FROM entries
WHERE org_id = :org_id AND id = :entry_id
FOR UPDATE;

-- find_dead --
-- The next dead entries (by id) of an automation, of one cause if given, locked until commit.
SELECT id
FROM entries
WHERE org_id = :org_id AND automation_id = :automation_id AND id > :after ::uuid AND state = 'dead'
    AND (:cause ::text IS NULL OR outcome = :cause)
ORDER BY id
LIMIT :limit
FOR UPDATE;

-- find_dead_automations --
-- The active automations that have dead entries.
SELECT a.id
FROM automations a
WHERE a.org_id = :org_id AND a.active AND a.archived_at IS NULL
    AND EXISTS (SELECT FROM entries e WHERE e.org_id = :org_id AND e.automation_id = a.id AND e.state = 'dead')
ORDER BY a.id;

-- revive_entries --
-- Give dead entries a new cycle of attempts at the node where they died; what happened before stays on record.
WITH moved AS (
    UPDATE entries e
    SET state = 'pending', outcome = NULL, last_error = NULL, attempts = 0, lease_until = NULL, activation = a.activation,
        due_at = :at, turn_at = NULL, updated_at = :at
    FROM automations a
    WHERE e.org_id = :org_id AND e.id = ANY(:entry_ids ::uuid[]) AND e.state = 'dead'
        AND a.org_id = :org_id AND a.id = e.automation_id
    RETURNING e.id
)
INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
SELECT :org_id, id, 'dead', 'pending', :at, 'replay' FROM moved
RETURNING true;
