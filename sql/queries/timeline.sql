-- What happened to one contact, newest first; of each kind the rows before a moment and an id.

-- count_traces --
-- How many events, entries, messages and identity conflicts a contact has.
SELECT (SELECT count(*) FROM events WHERE org_id = :org_id AND contact_id = :contact_id),
       (SELECT count(*) FROM entries WHERE org_id = :org_id AND contact_id = :contact_id),
       (SELECT count(*) FROM messages WHERE org_id = :org_id AND contact_id = :contact_id),
       (SELECT count(*) FROM identity_conflicts
        WHERE org_id = :org_id AND (contact_id = ANY (family.ids) OR other_contact_id = ANY (family.ids)))
FROM (SELECT array_agg(id) AS ids FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id)) family;

-- timeline_events --
-- Its events.
SELECT created_at, id, event, occurred_at, payload, idempotency_key
FROM events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:before_at ::timestamptz, :before_id ::uuid)
ORDER BY created_at DESC, id DESC
LIMIT :most;

-- timeline_entries --
-- Its entries, with the names of automation and event.
SELECT e.created_at, e.id, e.automation_id, a.name, e.automation_version, e.event_id, coalesce(v.event, o.event), e.state, e.outcome
FROM (
    SELECT * FROM entries
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:before_at ::timestamptz, :before_id ::uuid)
    ORDER BY created_at DESC, id DESC
    LIMIT :most
) e
JOIN automations a ON a.org_id = :org_id AND a.id = e.automation_id
LEFT JOIN events v ON v.org_id = :org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = :org_id AND o.id = e.event_id
ORDER BY e.created_at DESC, e.id DESC;

-- timeline_messages --
-- Its messages, with the last that their steps say of why.
SELECT m.created_at, m.id, m.automation_id, a.name, m.entry_id, m.node_id, m.channel, m.status, m.subject, m.body, m.sent_at,
       m.delivered_at,
       (SELECT coalesce(s.detail ->> 'cause', s.detail ->> 'error') FROM entry_steps s
        WHERE s.org_id = :org_id AND s.entry_id = m.entry_id AND s.node_id = m.node_id
        ORDER BY s.claim DESC, s.step DESC LIMIT 1)
FROM (
    SELECT * FROM messages
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:before_at ::timestamptz, :before_id ::uuid)
    ORDER BY created_at DESC, id DESC
    LIMIT :most
) m
JOIN automations a ON a.org_id = :org_id AND a.id = m.automation_id
ORDER BY m.created_at DESC, m.id DESC;

-- timeline_conflicts --
-- Its identity conflicts, whichever side of them it is on, and those of contacts that were merged into it.
SELECT c.created_at, c.id, c.event_id, c.contact_id, c.other_contact_id, c.kind, c.outcome, c.resolved_by
FROM (SELECT array_agg(id) AS ids FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id)) family
JOIN identity_conflicts c ON c.org_id = :org_id AND (c.contact_id = ANY (family.ids) OR c.other_contact_id = ANY (family.ids))
WHERE (c.created_at, c.id) < (:before_at ::timestamptz, :before_id ::uuid)
ORDER BY c.created_at DESC, c.id DESC
LIMIT :most;

-- timeline_merges --
-- The contacts it absorbed, and those that were taken back.
SELECT created_at, id, absorbed_id, undone_at
FROM contact_merges
WHERE org_id = :org_id AND keep_id = :contact_id AND (created_at, id) < (:before_at ::timestamptz, :before_id ::uuid)
ORDER BY created_at DESC, id DESC
LIMIT :most;

-- timeline_logs --
-- What happened on chains to its wallets.
SELECT created_at, id, chain_id, contract, event, tx_hash, log_index, block_number, args, removed
FROM onchain_events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:before_at ::timestamptz, :before_id ::uuid)
ORDER BY created_at DESC, id DESC
LIMIT :most;
