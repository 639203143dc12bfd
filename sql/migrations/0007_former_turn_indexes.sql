-- contract: needs 0006_turn_order
-- outside a transaction
-- Only engines of before 0006_turn_order read these.
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_taken;
DROP INDEX CONCURRENTLY IF EXISTS workbench.entries_put_back;
