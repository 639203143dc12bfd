-- Heartbeats of engine processes.

-- record_heartbeat --
-- Record that an engine process is alive, and when the next entry is due.
INSERT INTO engines (id, started_at, seen_at, next_due_at) VALUES (:engine_id, :now, :now, :next_due_at)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, next_due_at = excluded.next_due_at;

-- remove_engine --
-- Delete an engine process that stops, and engines whose last heartbeat is old.
DELETE FROM engines WHERE id = :engine_id OR seen_at < :now ::timestamptz - :forgotten_after ::interval;

-- last_heartbeat --
-- The newest heartbeat of any engine.
SELECT seen_at, next_due_at FROM engines ORDER BY seen_at DESC LIMIT 1;

-- count_engines --
-- The number of engine processes that are alive.
SELECT count(*) FROM engines WHERE seen_at > :now ::timestamptz - :silent_after ::interval;
