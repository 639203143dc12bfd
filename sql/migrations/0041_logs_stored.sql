-- outside a transaction
-- Finds new logs for parts.
DROP INDEX CONCURRENTLY IF EXISTS workbench.onchain_events_stored;
CREATE INDEX CONCURRENTLY onchain_events_stored ON workbench.onchain_events (org_id, stored_in) WHERE contact_id IS NOT NULL;
