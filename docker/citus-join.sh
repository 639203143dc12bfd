#!/bin/sh
# citus-join.sh HOST...: join these workers to the coordinator (PGHOST), and create the application's role on all nodes.
# It can be repeated. The role comes last, because Citus copies to the workers only what is created after they joined.
set -eu
run() { psql --quiet --no-psqlrc --set=ON_ERROR_STOP=1 "$@"; }

for host in "$PGHOST" "$@"; do
    run --host="$host" --command="SET client_min_messages = warning" --command="CREATE EXTENSION IF NOT EXISTS citus"
done
run --set=host="$PGHOST" --set=port="${PGPORT:-5432}" <<'SQL'
SELECT citus_set_coordinator_host(:'host', :port) \g /dev/null
SQL
for host in "$@"; do
    run --set=host="$host" --set=port="${PGPORT:-5432}" <<'SQL'
SELECT citus_add_node(:'host', :port) \g /dev/null
SQL
done
run --set=password="$WORKBENCH_DB_PASSWORD" <<'SQL'
SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'workbench') AS is_new \gset
\if :is_new
CREATE ROLE workbench LOGIN CREATEROLE CREATEDB NOSUPERUSER PASSWORD :'password';
\endif
-- Citus does not propagate all of these statements, so propagation is off and the workers get them separately.
SET citus.enable_ddl_propagation = off;
GRANT SET ON PARAMETER temp_file_limit TO workbench;
GRANT pg_signal_backend TO workbench;
ALTER DATABASE workbench OWNER TO workbench;
SELECT nodename, result FROM run_command_on_workers($$
    SET citus.enable_ddl_propagation = off;
    GRANT SET ON PARAMETER temp_file_limit TO workbench;
    GRANT pg_signal_backend TO workbench;
    ALTER DATABASE workbench OWNER TO workbench;
$$) WHERE NOT success;
SQL
