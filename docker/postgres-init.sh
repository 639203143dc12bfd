#!/bin/sh
# First start of the postgres container: create the application's role and database, as the embedded server does.
set -eu
psql --set=ON_ERROR_STOP=1 --username "$POSTGRES_USER" --set=password="$WORKBENCH_DB_PASSWORD" <<'SQL'
CREATE ROLE workbench LOGIN CREATEROLE CREATEDB NOSUPERUSER PASSWORD :'password';
GRANT SET ON PARAMETER temp_file_limit TO workbench;
GRANT pg_signal_backend TO workbench;
CREATE DATABASE workbench OWNER workbench;
SQL
