-- What keeps the tables in shape.

-- unknown_tables --
-- Tables with rows that the planner knows nothing of yet: a fresh database has no statistics until someone takes them.
-- A table that was seen empty counts as unknown while it had no pages then; one that was emptied later has some. A
-- partitioned table has no pages of its own, and autovacuum never takes its statistics.
SELECT c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'workbench' AND (
    c.relkind = 'r' AND (c.reltuples < 0 OR c.reltuples = 0 AND c.relpages = 0)
        AND pg_catalog.pg_relation_size(c.oid) > 131072
    OR c.relkind = 'p' AND c.reltuples <= 0 AND EXISTS (
        SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = c.oid AND p.reltuples > 0)
);

-- forget_dry_runs --
-- Delete the oldest dry runs; they are kept for seven days.
DELETE FROM dry_runs WHERE org_id = :org_id AND key_digest IN (
    SELECT key_digest FROM dry_runs WHERE org_id = :org_id AND id < :before ::uuid ORDER BY id LIMIT :most);

-- forget_notices --
-- Delete the oldest refusals and duplicates; they are kept for seven days.
DELETE FROM event_notices WHERE org_id = :org_id AND id IN (
    SELECT id FROM event_notices WHERE org_id = :org_id AND id < :before ::uuid ORDER BY id LIMIT :most);

-- organizations --
-- Every organization.
SELECT id FROM organizations ORDER BY id;
