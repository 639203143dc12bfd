-- What came of events of one contact in one automation, read-only. SQL only finds the rows; the language judges.

-- recent_events --
-- The newest events of a contact, dry runs and logs of chains among them; emails are sealed. Of a log the payload is its parameters.
SELECT id::text, event, created_at, payload, wallet_address, email, external_id, dry, signature, removed, block_time, chain_id, contract,
       tx_hash, log_index, block_number
FROM (
    (SELECT id, event, created_at, payload, wallet_address, email, external_id, false AS dry, NULL AS signature, false AS removed,
            NULL::timestamptz AS block_time, NULL::bigint AS chain_id, NULL AS contract, NULL AS tx_hash, NULL::integer AS log_index, NULL::bigint AS block_number
     FROM events
     WHERE org_id = :org_id AND contact_id = :contact_id
     ORDER BY created_at DESC, id DESC LIMIT :most)
    UNION ALL
    (SELECT id, event, created_at, payload, NULL, NULL, NULL, true, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL
     FROM dry_runs
     WHERE org_id = :org_id AND contact_id = :contact_id
     ORDER BY created_at DESC, id DESC LIMIT :most)
    UNION ALL
    (SELECT id, event, created_at, args, NULL, NULL, NULL, false, signature, removed, block_time, chain_id, contract, tx_hash, log_index,
            block_number
     FROM onchain_events
     WHERE org_id = :org_id AND contact_id = :contact_id
     ORDER BY created_at DESC, id DESC LIMIT :most)
) e
ORDER BY created_at DESC, id DESC
LIMIT :most;

-- one_event --
-- One event of a contact, maybe a dry run or a log.
SELECT id::text, event, created_at, payload, wallet_address, email, external_id, false, NULL, false, NULL::timestamptz, NULL::bigint,
       NULL, NULL, NULL::integer, NULL::bigint
FROM events
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id
UNION ALL
SELECT id::text, event, created_at, payload, NULL, NULL, NULL, true, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL
FROM dry_runs
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id
UNION ALL
SELECT id::text, event, created_at, args, NULL, NULL, NULL, false, signature, removed, block_time, chain_id, contract, tx_hash, log_index,
       block_number
FROM onchain_events
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id;

-- entries_of_events --
-- The entries that events started in an automation, with the reason for which one was not let in.
SELECT e.event_id::text, e.id::text, e.state, e.outcome,
       (SELECT s.detail ->> 'cause' FROM entry_steps s
        WHERE s.org_id = :org_id AND s.entry_id = e.id AND s.outcome = 'refused'
        ORDER BY s.claim DESC, s.step DESC LIMIT 1)
FROM unnest(:event_ids ::uuid[]) AS k (event_id)
JOIN entries e ON e.org_id = :org_id AND e.automation_id = :automation_id AND e.event_id = k.event_id;

-- switches --
-- When an automation was switched on and off, in order; while it is paused it takes no entries either.
SELECT created_at, CASE action
           WHEN 'automation.activate' THEN true
           WHEN 'automation.deactivate' THEN false
           WHEN 'automation.archive' THEN false
           WHEN 'automation.pause' THEN false
           WHEN 'automation.resume' THEN true
           ELSE (detail ->> 'active')::boolean
       END AS active
FROM audit_log
WHERE org_id = :org_id AND subject_id = :automation_id
    AND (action IN ('automation.activate', 'automation.deactivate', 'automation.archive', 'automation.pause',
                    'automation.resume')
         OR (action IN ('automation.create', 'automation.update') AND detail ? 'active'))
ORDER BY created_at, id;
