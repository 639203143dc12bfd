-- The login role of one organization's analysts, and what it still lacks. The rights follow from the views of `analyst` and
-- `analyst_past`.

-- lock_readers --
-- Take turns with every other process that is about to create or complete a reader.
SELECT pg_advisory_xact_lock(7300453);

-- reader_exists --
-- Whether the role is known to the server.
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role);

-- unsafe_views --
-- Names of what would show an analyst other organizations' rows: a view that runs with its owner's rights, a table without row policies.
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace IN ('analyst'::regnamespace, 'analyst_past'::regnamespace)
  AND (c.relkind <> 'v' OR c.reloptions IS NULL OR NOT c.reloptions @> ARRAY['security_invoker=true', 'security_barrier=true'])
UNION
SELECT c.relname::text FROM information_schema.view_column_usage u
JOIN pg_class c ON c.oid = format('%I.%I', u.table_schema, u.table_name)::regclass
WHERE u.view_schema IN ('analyst', 'analyst_past') AND NOT c.relrowsecurity
ORDER BY 1;

-- reader_lacks --
-- What an existing role still lacks, as (kind, place, name): connect (database), schema (schema), view (schema, view),
-- column (table, column), policy (table).
WITH used AS (
    SELECT DISTINCT table_name::text, column_name::text FROM information_schema.view_column_usage
    WHERE view_schema IN ('analyst', 'analyst_past') AND table_schema = 'workbench')
SELECT 'connect', current_database()::text, '' WHERE NOT has_database_privilege(:role, current_database(), 'CONNECT')
UNION ALL
SELECT 'schema', place, '' FROM unnest(ARRAY['analyst', 'analyst_past']) place WHERE NOT has_schema_privilege(:role, place, 'USAGE')
UNION ALL
SELECT 'view', schemaname, viewname FROM pg_views
WHERE schemaname IN ('analyst', 'analyst_past') AND NOT has_table_privilege(:role, format('%I.%I', schemaname, viewname), 'SELECT')
UNION ALL
SELECT 'column', table_name, column_name FROM used
WHERE NOT has_column_privilege(:role, format('workbench.%I', table_name), column_name, 'SELECT')
UNION ALL
SELECT 'policy', table_name, '' FROM (SELECT DISTINCT table_name FROM used) tables
WHERE NOT EXISTS (SELECT FROM pg_policies
                  WHERE schemaname = 'workbench' AND tablename = table_name AND policyname = :role)
ORDER BY 1, 2, 3;

-- reader_is_confined --
-- Whether the hardening script ran: without it the role may call set_config and everything else PUBLIC may.
SELECT NOT has_function_privilege(:role, 'pg_catalog.set_config(text, text, boolean)', 'EXECUTE');

-- stop_backend --
-- End a connection of a reader that does not end by itself; false when it is gone already.
SELECT pg_terminate_backend(:pid);
