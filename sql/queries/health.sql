-- Signs of life.

-- beat --
-- An engine process says that it is alive, and when the next entry is due.
INSERT INTO engines (id, started_at, seen_at, next_due_at) VALUES (:id, :now, :now, :next_due_at)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, next_due_at = excluded.next_due_at;

-- leave --
-- An engine process stops.
DELETE FROM engines WHERE id = :id OR seen_at < :long_ago;

-- last_beat --
-- The last sign of life of any engine.
SELECT seen_at, next_due_at FROM engines ORDER BY seen_at DESC LIMIT 1;
