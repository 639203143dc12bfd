-- What is kept of one contact, page by page.

-- export_events --
-- The next events of a contact; emails are sealed.
SELECT created_at, id, event, occurred_at, payload, idempotency_key, wallet_address, email, external_id
FROM events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
ORDER BY created_at, id
LIMIT :most;

-- export_entries --
-- The next entries of a contact, with their steps.
SELECT e.created_at, e.id, e.automation_id, e.automation_version, e.event_id, e.state, e.outcome, e.node_id, e.attempts, e.last_error,
       e.updated_at,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('nodeId', s.node_id, 'kind', s.kind, 'at', s.at, 'outcome', s.outcome,
                                                     'handle', s.handle, 'detail', s.detail) ORDER BY s.claim, s.step), '[]')
        FROM entry_steps s WHERE s.org_id = :org_id AND s.entry_id = e.id)
FROM entries e
WHERE e.org_id = :org_id AND e.contact_id = :contact_id AND (e.created_at, e.id) > (:after_at ::timestamptz, :after_id ::uuid)
ORDER BY e.created_at, e.id
LIMIT :most;

-- export_messages --
-- The next messages to a contact; the recipient of an email is sealed.
SELECT created_at, id, automation_id, entry_id, node_id, channel, status, wallet_address, recipient, subject, body, extra, sent_at,
       delivered_at
FROM messages
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
ORDER BY created_at, id
LIMIT :most;

-- export_absorbed --
-- The next contacts that were merged into this one, as they were; emails are sealed.
SELECT created_at, id, wallet_address, email, external_id, attributes, tags
FROM contacts
WHERE org_id = :org_id AND merged_into = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
ORDER BY created_at, id
LIMIT :most;

-- export_logs --
-- The next logs of chains that are about a contact.
SELECT created_at, id, chain_id, contract, event, tx_hash, log_index, block_number, block_time, args, removed
FROM onchain_events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
ORDER BY created_at, id
LIMIT :most;
