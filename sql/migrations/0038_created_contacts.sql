-- outside a transaction
-- Finds contacts by the moment of their creation, for increments of segments. Rows of contacts move when they are updated, so a range of blocks
-- has several intervals.
DROP INDEX CONCURRENTLY IF EXISTS workbench.contacts_created;
CREATE INDEX CONCURRENTLY contacts_created ON workbench.contacts USING brin (org_id, created_at timestamptz_minmax_multi_ops)
    WITH (pages_per_range='32', autosummarize='true');
