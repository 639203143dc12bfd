-- Connections: requests to providers that messages are sent by.

-- list_connections --
-- The connections by name; some of them, if names are given.
SELECT name, definition, secrets, next_at, queue_end, created_at, updated_at, updated_by
FROM connections
WHERE org_id = :org_id AND (:names ::text[] IS NULL OR name = ANY (:names ::text[]))
ORDER BY name;

-- hold_connections --
-- The same, and keep them from being changed or deleted until the transaction ends.
SELECT name, definition, secrets, next_at, queue_end, created_at, updated_at, updated_by
FROM connections
WHERE org_id = :org_id AND name = ANY (:names ::text[])
ORDER BY name
FOR SHARE;

-- lock_connection --
-- A connection, to change or delete it, or to take a turn.
SELECT name, definition, secrets, next_at, queue_end, created_at, updated_at, updated_by
FROM connections
WHERE org_id = :org_id AND name = :name
FOR NO KEY UPDATE;

-- count_connections --
-- How many connections there are.
SELECT count(*) FROM connections WHERE org_id = :org_id;

-- save_connection --
-- Create a connection, or replace it. With another rate, its turns start anew.
INSERT INTO connections (org_id, name, definition, secrets, created_at, updated_at, updated_by)
VALUES (:org_id, :name, :definition ::jsonb, :secrets, :at, :at, :key_id)
ON CONFLICT (org_id, name) DO UPDATE SET definition = excluded.definition, secrets = excluded.secrets,
    next_at = CASE WHEN connections.definition -> 'rate' IS NOT DISTINCT FROM excluded.definition -> 'rate'
        THEN connections.next_at END,
    queue_end = CASE WHEN connections.definition -> 'rate' IS NOT DISTINCT FROM excluded.definition -> 'rate'
        THEN connections.queue_end END,
    updated_at = excluded.updated_at, updated_by = excluded.updated_by
RETURNING name, definition, secrets, next_at, queue_end, created_at, updated_at, updated_by;

-- delete_connection --
-- Forget a connection and its secrets.
DELETE FROM connections WHERE org_id = :org_id AND name = :name;

-- set_turns --
-- When the next message may leave, and when the last of those that wait comes back.
UPDATE connections SET next_at = :next_at, queue_end = :queue_end WHERE org_id = :org_id AND name = :name;
