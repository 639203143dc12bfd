-- History on its way in by COPY (`api/store/copying.py`).

-- prepare_keys --
-- Where idempotency keys arrive.
CREATE TEMPORARY TABLE IF NOT EXISTS arriving_keys (LIKE idempotency_keys) ON COMMIT DELETE ROWS;

-- send_keys --
-- Bring idempotency keys that nobody was seen to hold, sorted by the caller.
COPY arriving_keys (org_id, key_digest, event_id, body_digest, created_at) FROM STDIN (FORMAT binary);

-- add_keys --
-- Claim them; one that came meanwhile ends the transaction.
INSERT INTO idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)
SELECT org_id, key_digest, event_id, body_digest, created_at FROM arriving_keys
RETURNING true;

-- list_months --
-- Which of these months (`2026_11`) have a table of their own.
SELECT m.month FROM unnest(:months ::text[]) AS m (month)
JOIN pg_inherits i ON i.inhrelid = to_regclass('workbench.events_' || m.month)
WHERE i.inhparent = 'workbench.events'::regclass;

-- add_past_events --
-- Store events of the past in the table of their month, created when they occurred.
COPY {} (org_id, id, occurred_at, created_at, payload, idempotency_key, event,
         wallet_address, email, external_id, contact_id, stored_in) FROM STDIN (FORMAT binary);
