-- Login roles that read, and what they still lack. The rights follow from the views of `analyst`, `analyst_past` and `analyst_direct`.

-- lock_readers --
-- Take turns with every other process that is about to create or complete a reader.
SELECT pg_advisory_xact_lock(7300453);

-- role_exists --
-- Whether the role is known to the server.
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role);

-- unsafe_views --
-- Names of what would show an analyst other organizations' rows: a view that runs with its owner's rights, a table without row policies.
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace IN ('analyst'::regnamespace, 'analyst_direct'::regnamespace, 'analyst_past'::regnamespace)
  AND (c.relkind <> 'v' OR c.reloptions IS NULL OR NOT c.reloptions @> ARRAY['security_invoker=true', 'security_barrier=true'])
UNION
SELECT c.relname::text FROM information_schema.view_column_usage u
JOIN pg_class c ON c.oid = format('%I.%I', u.table_schema, u.table_name)::regclass
WHERE u.view_schema IN ('analyst', 'analyst_direct', 'analyst_past') AND NOT c.relrowsecurity
ORDER BY 1;

-- gateway_views --
-- What the gateway's readers see.
SELECT format('%I.%I', schemaname, viewname) FROM pg_views WHERE schemaname IN ('analyst', 'analyst_past') ORDER BY 1;

-- role_lacks --
-- What an existing role still lacks to read views, as (kind, place, name): connect (database), schema (schema), view (schema,
-- view), column (table, column), policy (table).
WITH seen AS (
    SELECT schemaname::text AS place, viewname::text AS name FROM pg_views WHERE format('%I.%I', schemaname, viewname) = ANY(:views ::text[])
), used AS (
    SELECT DISTINCT table_name::text, column_name::text FROM information_schema.view_column_usage
    JOIN seen ON view_schema = place AND view_name = name WHERE table_schema = 'workbench')
SELECT 'connect', current_database()::text, '' WHERE NOT has_database_privilege(:role, current_database(), 'CONNECT')
UNION ALL
SELECT DISTINCT 'schema', place, '' FROM seen WHERE NOT has_schema_privilege(:role, place, 'USAGE')
UNION ALL
SELECT 'view', place, name FROM seen WHERE NOT has_table_privilege(:role, format('%I.%I', place, name), 'SELECT')
UNION ALL
SELECT 'column', table_name, column_name FROM used
WHERE NOT has_column_privilege(:role, format('workbench.%I', table_name), column_name, 'SELECT')
UNION ALL
SELECT 'policy', table_name, '' FROM (SELECT DISTINCT table_name FROM used) tables
WHERE NOT EXISTS (SELECT FROM pg_policies
                  WHERE schemaname = 'workbench' AND tablename = table_name AND policyname = :role)
ORDER BY 1, 2, 3;

-- role_is_confined --
-- Whether the hardening script ran: without it the role may call set_config and everything else PUBLIC may.
SELECT NOT has_function_privilege(:role, 'pg_catalog.set_config(text, text, boolean)', 'EXECUTE');

-- stop_backend --
-- End a connection of a reader that does not end by itself; false when it is gone already.
SELECT pg_terminate_backend(:pid ::integer);
