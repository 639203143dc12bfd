-- The numbers of transactions across Postgres clusters (see `clusters` in the schema), and what a query saw in these numbers.

-- note_cluster --
-- Begin a new series of numbers when the database has come to another cluster. The transactions that will use it are not begun.
INSERT INTO workbench.clusters (first_number, system_identifier, added, since)
SELECT greatest(following, counter), system_identifier, greatest(following - counter, 0), clock_timestamp()
FROM pg_control_system(),
     LATERAL (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS counter,
                     greatest((SELECT max(stored_in) FROM workbench.events), (SELECT max(first_number) FROM workbench.clusters), -1) + 1
                         AS following) numbers
WHERE system_identifier IS DISTINCT FROM
      (SELECT c.system_identifier FROM workbench.clusters c ORDER BY first_number DESC LIMIT 1);

-- number_added --
-- What this cluster adds to the ids of its transactions; no row when the database has come to it and was not migrated since.
SELECT c.added FROM pg_control_system() s, (SELECT * FROM clusters ORDER BY first_number DESC LIMIT 1) c
WHERE c.system_identifier = s.system_identifier;

-- own_number --
-- The number of this transaction.
SELECT pg_current_xact_id()::text::bigint + :added ::bigint;

-- share_snapshot --
-- A name under which another transaction can see what this one sees while it lasts; what that is, and when; and whether that is all:
-- on a standby the transactions that are open are not told.
SELECT pg_export_snapshot(), c.system_identifier, c.first_number, pg_snapshot_xmax(seen)::text::bigint + c.added,
       ARRAY(SELECT open::text::bigint + c.added FROM pg_snapshot_xip(seen) AS open), clock_timestamp(),
       NOT pg_is_in_recovery() OR pg_snapshot_xmin(seen) = pg_snapshot_xmax(seen)
FROM pg_current_snapshot() AS seen, pg_control_system() s, (SELECT * FROM clusters ORDER BY first_number DESC LIMIT 1) c
WHERE c.system_identifier = s.system_identifier;

-- find_cluster --
-- Of a cluster in which the database has been: where the numbers of the one after it begin, and since when; nulls for the last one.
SELECT n.first_number, n.since FROM clusters c
LEFT JOIN LATERAL (SELECT * FROM clusters n WHERE n.first_number > c.first_number ORDER BY n.first_number LIMIT 1) n ON true
WHERE c.system_identifier = :system_identifier AND c.first_number = :first_number;

-- is_distributed --
-- Whether this is Citus, where each node counts its own transactions.
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus');

-- is_coordinator --
-- Whether this node of a Citus cluster is the one that distributes tables.
SELECT citus_is_coordinator();

-- run_on_workers --
-- Run a script on every worker of a Citus cluster; who did not do it, with the reason.
SELECT nodename, nodeport, result FROM run_command_on_workers(:script) WHERE NOT success;
