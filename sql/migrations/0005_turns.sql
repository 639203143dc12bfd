-- outside a transaction
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_taken;
CREATE INDEX CONCURRENTLY entries_taken ON workbench.entries (org_id, contact_id, state, due_at) WHERE state IN ('running', 'retrying');
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_put_back;
CREATE INDEX CONCURRENTLY entries_put_back ON workbench.entries (org_id, contact_id, turn_at, event_id, automation_id)
    WHERE turn_at IS NOT NULL AND state IN ('pending', 'waiting', 'retrying');
