-- Entries as people see them: lists, one entry with all that happened to it, counts, and replay of dead ones.

-- list_entries --
-- The newest entries of the organization.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event), e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
WHERE e.org_id = :org_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :most;

-- list_entries_of_automation --
-- The newest entries of one automation.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event), e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
WHERE e.org_id = :org_id AND e.automation_id = :automation_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :most;

-- list_entries_of_event --
-- The entries of one event: the index is by (automation, event), so every automation is asked.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event), e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at
FROM automations a
JOIN entries e ON e.org_id = a.org_id AND e.automation_id = a.id AND e.event_id = :event_id ::uuid
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
WHERE a.org_id = :org_id
    AND (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
    AND (:event ::text IS NULL OR coalesce(v.event, o.event) = :event)
ORDER BY e.id DESC
LIMIT :most;

-- list_entries_by_name --
-- The newest entries of events of one name, among the newest 1,000 of those events.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, v.event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at
FROM (
    (SELECT id, event FROM events WHERE org_id = :org_id AND event = :event ORDER BY created_at DESC LIMIT 1000)
    UNION ALL
    (SELECT id, event FROM onchain_events WHERE org_id = :org_id AND event = :event ORDER BY id DESC LIMIT 1000)
) v
CROSS JOIN (SELECT id FROM automations WHERE org_id = :org_id) a
JOIN entries e ON e.org_id = :org_id AND e.automation_id = a.id AND e.event_id = v.id
WHERE (:state ::text IS NULL OR e.state = :state)
    AND (:after ::uuid IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :most;

-- find_event_of_key --
-- The event that holds an idempotency key.
SELECT event_id FROM idempotency_keys WHERE org_id = :org_id AND key_digest = :key_digest ::uuid;

-- find_log --
-- A log by what it is called on its chain.
SELECT id FROM onchain_events
WHERE org_id = :org_id AND chain_id = :chain_id AND tx_hash = :tx_hash AND log_index = :log_index;

-- find_entry --
-- One entry, with the event that started it.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event), e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at,
       coalesce(v.idempotency_key, o.chain_id || ':' || o.tx_hash || ':' || o.log_index), coalesce(v.occurred_at, o.block_time),
       coalesce(v.payload, jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex',
                                              o.log_index, 'blockNumber', o.block_number) || o.args)
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
WHERE e.org_id = :org_id AND e.id = :id;

-- list_steps --
-- What happened at each node, in order.
SELECT node_id, kind, at, outcome, attempt, handle, detail
FROM entry_steps
WHERE org_id = :org_id AND entry_id = :entry_id
ORDER BY claim, step;

-- list_messages --
-- The messages of an entry, in order; those that were withheld or erased have no text to show.
SELECT id, node_id, channel, status, wallet_address, recipient, subject, body, html, extra, created_at, sent_at, delivered_at
FROM messages
WHERE org_id = :org_id AND entry_id = :entry_id AND body IS NOT NULL
ORDER BY created_at, id;

-- list_transitions --
-- Every move of an entry between states, in order.
SELECT from_state, to_state, at, reason
FROM entry_transitions
WHERE org_id = :org_id AND entry_id = :entry_id
ORDER BY seq;

-- count_standings --
-- How many of the newest entries of an automation stand where: in which state, and at which node.
SELECT state, node_id, count(*)
FROM (
    SELECT state, node_id FROM entries WHERE org_id = :org_id AND automation_id = :automation_id ORDER BY id DESC LIMIT :most
) e
GROUP BY state, node_id;

-- count_outcomes --
-- How often the newest entries of an automation met each outcome at each node.
SELECT s.node_id, s.outcome, count(*)
FROM (
    SELECT id FROM entries WHERE org_id = :org_id AND automation_id = :automation_id ORDER BY id DESC LIMIT :most
) e
JOIN entry_steps s ON s.org_id = :org_id AND s.entry_id = e.id
GROUP BY s.node_id, s.outcome
ORDER BY s.node_id, s.outcome;

-- count_dead --
-- The dead entries of automations (of one when it is given) by cause and node, of each automation the newest: how many, the
-- most attempts, what the last of them said, and when they died.
SELECT a.id, a.name, a.active, e.outcome, e.node_id, count(*), max(e.attempts),
       (array_agg(e.last_error ORDER BY e.updated_at DESC, e.id DESC))[1], min(e.updated_at), max(e.updated_at)
FROM automations a
CROSS JOIN LATERAL (
    SELECT id, outcome, node_id, attempts, last_error, updated_at
    FROM entries
    WHERE org_id = :org_id AND automation_id = a.id AND state = 'dead'
    ORDER BY id DESC
    LIMIT :most
) e
WHERE a.org_id = :org_id AND (:automation_id ::uuid IS NULL OR a.id = :automation_id ::uuid)
GROUP BY a.id, a.name, a.active, e.outcome, e.node_id
ORDER BY max(e.updated_at) DESC, a.id, e.outcome, e.node_id;

-- lock_entry --
-- State and outcome of an entry, held until commit.
SELECT state, outcome
FROM entries
WHERE org_id = :org_id AND id = :id
FOR UPDATE;

-- find_dead --
-- The next dead entries (by id) of an automation, of one cause when it is given, held until commit.
SELECT id
FROM entries
WHERE org_id = :org_id AND automation_id = :automation_id AND id > :after ::uuid AND state = 'dead'
    AND (:cause ::text IS NULL OR outcome = :cause)
ORDER BY id
LIMIT :most
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
    SET state = 'pending', outcome = NULL, last_error = NULL, attempts = 0, lease_until = NULL, stint = a.stint,
        due_at = :at, updated_at = :at
    FROM automations a
    WHERE e.org_id = :org_id AND e.id = ANY(:ids ::uuid[]) AND e.state = 'dead'
        AND a.org_id = :org_id AND a.id = e.automation_id
    RETURNING e.id
)
INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
SELECT :org_id, id, 'dead', 'pending', :at, 'replay' FROM moved
RETURNING true;

-- graphs_of_entries --
-- The graphs that entries run, each once.
SELECT v.graph, array_agg(e.id ::text)
FROM entries e
JOIN automation_versions v ON v.org_id = :org_id AND v.automation_id = e.automation_id AND v.version = e.automation_version
WHERE e.org_id = :org_id AND e.id = ANY (:ids ::uuid[])
GROUP BY v.org_id, v.automation_id, v.version;
