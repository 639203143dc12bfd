-- outside a transaction
-- One index on the entries that a claim of their contact has to respect, in place of two.
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_turns;
CREATE INDEX CONCURRENTLY entries_turns ON workbench.entries (org_id, contact_id, (state <> 'running'), coalesce(turn_at, due_at), event_id, automation_id)
    WHERE state IN ('running', 'retrying') OR (state IN ('pending', 'waiting') AND turn_at IS NOT NULL);
