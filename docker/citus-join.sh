#!/bin/sh
# citus-join.sh HOST...: make one cluster of the coordinator (PGHOST) and these workers, with the application's role on all of them.
# Harmless when repeated. The role comes last: Citus makes on every worker what is created after the nodes have joined.
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
SET citus.enable_ddl_propagation = off;     -- not all of these would reach the workers: each is told by itself
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
