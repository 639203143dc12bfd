-- History of an import, written by COPY (api/store/copy.py).

-- prepare_keys --
-- The temporary table through which idempotency keys pass: COPY does not write to tables with row-level security.
CREATE TEMPORARY TABLE IF NOT EXISTS arriving_keys (LIKE idempotency_keys) ON COMMIT DELETE ROWS;

-- send_keys --
-- Send idempotency keys that were not claimed at the last look; the caller sorts them.
COPY arriving_keys (org_id, key_digest, event_id, body_digest, created_at) FROM STDIN (FORMAT binary);

-- add_keys --
-- Claim them; a key that was claimed meanwhile fails the transaction.
INSERT INTO idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)
SELECT org_id, key_digest, event_id, body_digest, created_at FROM arriving_keys
RETURNING true;

-- list_months --
-- The months (`2026_11`) that have their own partition.
SELECT m.month FROM unnest(:months ::text[]) AS m (month)
JOIN pg_inherits i ON i.inhrelid = to_regclass('workbench.events_' || m.month)
WHERE i.inhparent = 'workbench.events'::regclass;

-- add_past_events --
-- Store past events in the partition of their month; `created_at` is the time at which they occurred.
COPY {} (org_id, id, occurred_at, created_at, payload, idempotency_key, event,
         wallet_address, email, external_id, contact_id, stored_in) FROM STDIN (FORMAT binary);
