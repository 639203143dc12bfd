-- Heartbeats of engine processes.

-- record_heartbeat --
-- An engine process is alive; when the next entry is due.
INSERT INTO engines (id, started_at, seen_at, next_due_at) VALUES (:id, :now, :now, :next_due_at)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, next_due_at = excluded.next_due_at;

-- remove_engine --
-- An engine process stops; engines that were silent for long go with it.
DELETE FROM engines WHERE id = :id OR seen_at < :long_ago;

-- last_heartbeat --
-- The newest heartbeat of any engine.
SELECT seen_at, next_due_at FROM engines ORDER BY seen_at DESC LIMIT 1;
