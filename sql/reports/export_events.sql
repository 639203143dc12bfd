-- A page of events between two times, by id.
SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key
FROM app_events
WHERE created_at >= :since AND created_at < :until AND id > :after ::uuid
ORDER BY id
LIMIT :limit
