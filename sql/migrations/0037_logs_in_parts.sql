-- Logs of chains in parts.
ALTER TABLE workbench.onchain_events ADD COLUMN stored_in bigint NOT NULL DEFAULT 0;
ALTER TABLE workbench.part_progress ADD COLUMN logs_state text;

CREATE VIEW workbench.events_logs WITH (security_invoker = true) AS
    SELECT org_id, id, contact_id, contract || ':' || lower(event) AS event, block_time AS occurred_at, created_at, stored_in,
           jsonb_build_object('chainId', chain_id, 'contract', contract, 'txHash', tx_hash, 'logIndex', log_index,
                              'blockNumber', block_number) || args AS payload
    FROM workbench.onchain_events
    WHERE contact_id IS NOT NULL AND NOT removed;

CREATE VIEW workbench.events_and_logs WITH (security_invoker = true) AS
    SELECT org_id, id, contact_id, event, occurred_at, created_at, stored_in, payload, false AS is_log FROM workbench.events
    UNION ALL
    SELECT org_id, id, contact_id, event, occurred_at, created_at, stored_in, payload, true FROM workbench.events_logs;
