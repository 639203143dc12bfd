-- Numbers of transactions across Postgres clusters (see the table `clusters` in the schema), and statements for
-- Citus.

-- Numbers of transactions ------------------------------------------------------------------------------------------

-- register_cluster --
-- Begin a new series of numbers if the database moved to another cluster. No transaction that will use it has begun
-- yet.
INSERT INTO workbench.clusters (first_number, system_identifier, added, since)
SELECT greatest(following, counter), system_identifier, greatest(following - counter, 0), clock_timestamp()
FROM pg_control_system(),
     LATERAL (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS counter,
                     greatest((SELECT max(stored_in) FROM workbench.events), (SELECT max(first_number) FROM workbench.clusters), -1) + 1
                         AS following) numbers
WHERE system_identifier IS DISTINCT FROM
      (SELECT c.system_identifier FROM workbench.clusters c ORDER BY first_number DESC LIMIT 1);

-- transaction_offset --
-- The offset that this cluster adds to its transaction ids; no row if the database moved to it and was not
-- migrated since.
SELECT c.added FROM pg_control_system() s, (SELECT * FROM clusters ORDER BY first_number DESC LIMIT 1) c
WHERE c.system_identifier = s.system_identifier;

-- Snapshots in these numbers ---------------------------------------------------------------------------------------

-- export_snapshot --
-- A name under which another transaction can take over this one's snapshot while it lasts; the snapshot and its
-- moment; and whether the list of open transactions is complete: a standby does not know which transactions are
-- open.
SELECT pg_export_snapshot(), c.system_identifier, c.first_number, pg_snapshot_xmax(snapshot)::text::bigint + c.added,
       ARRAY(SELECT open::text::bigint + c.added FROM pg_snapshot_xip(snapshot) AS open), clock_timestamp(),
       NOT pg_is_in_recovery() OR pg_snapshot_xmin(snapshot) = pg_snapshot_xmax(snapshot)
FROM pg_current_snapshot() AS snapshot, pg_control_system() s, (SELECT * FROM clusters ORDER BY first_number DESC LIMIT 1) c
WHERE c.system_identifier = s.system_identifier;

-- find_cluster --
-- For a cluster in which the database has been: where the numbers of the next cluster begin, and since when; nulls
-- for the current one.
SELECT n.first_number, n.since FROM clusters c
LEFT JOIN LATERAL (SELECT * FROM clusters n WHERE n.first_number > c.first_number ORDER BY n.first_number LIMIT 1) n ON true
WHERE c.system_identifier = :system_identifier AND c.first_number = :first_number;

-- Citus ------------------------------------------------------------------------------------------------------------

-- is_distributed --
-- Whether the server is Citus, where each node counts its own transactions.
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus');

-- is_coordinator --
-- Whether this node of a Citus cluster distributes tables.
SELECT citus_is_coordinator();

-- list_workers --
-- The id of each worker of a Citus cluster, and whether it answers.
SELECT n.nodeid, w.success FROM run_command_on_workers('SELECT 1') w JOIN pg_dist_node n USING (nodename, nodeport)
ORDER BY n.nodeid;

-- run_on_workers --
-- Run a script on every worker of a Citus cluster. A row for each worker on which it failed, with the reason.
SELECT nodename, nodeport, result FROM run_command_on_workers(:script) WHERE NOT success;
