-- outside a transaction
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_joined;
CREATE INDEX CONCURRENTLY entries_joined ON workbench.entries (org_id, joined_entry) WHERE joined_entry IS NOT NULL;
