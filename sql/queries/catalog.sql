-- What events there are.

-- count_events --
-- Event names received since a moment, most frequent first, ties by name. Dry runs are not among the events.
SELECT event, count(*) AS count
FROM events
WHERE org_id = :org_id AND created_at >= :since AND starts_with(event, :prefix)
GROUP BY event
ORDER BY count DESC, event
LIMIT :most;

-- describe_event --
-- How often one event was received since a moment, and when first and last.
SELECT count(*), min(created_at), max(created_at)
FROM events
WHERE org_id = :org_id AND event = :event AND created_at >= :since;

-- sample_payloads --
-- The payloads of the newest events of one name.
SELECT payload
FROM events
WHERE org_id = :org_id AND event = :event AND created_at >= :since
ORDER BY created_at DESC
LIMIT :most;
