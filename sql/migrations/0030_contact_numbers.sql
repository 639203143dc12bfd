-- outside a transaction
-- Finds contacts from before the column `number`. New contacts are not in it, and no other statement can use it.
DROP INDEX CONCURRENTLY IF EXISTS workbench.contacts_unnumbered;
CREATE INDEX CONCURRENTLY contacts_unnumbered ON workbench.contacts (org_id, id) WHERE number IS NULL;
