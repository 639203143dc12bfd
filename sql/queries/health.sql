-- Signs of life.

-- beat --
-- An engine process says that it is alive.
INSERT INTO engines (id, started_at, seen_at) VALUES (:id, :now, :now)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at;

-- leave --
-- An engine process stops.
DELETE FROM engines WHERE id = :id OR seen_at < :long_ago;

-- last_beat --
-- When any engine was last alive.
SELECT max(seen_at) FROM engines;
