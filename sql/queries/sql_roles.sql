-- Login roles that read SQL: their rights, which follow from the views of `analyst`, `analyst_past`, `analyst_changed` and
-- `analyst_direct`, and their sessions.

-- Rights of a role -------------------------------------------------------------------------------------------------

-- lock_role_changes --
-- Wait until no other process creates or completes a role.
SELECT pg_advisory_xact_lock(7300453);

-- role_exists --
-- Whether the server has the role.
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role);

-- role_is_confined --
-- Whether the hardening script ran: without it the role may call set_config and everything else that PUBLIC may.
SELECT NOT has_function_privilege(:role, 'pg_catalog.set_config(text, text, boolean)', 'EXECUTE');

-- find_unsafe_views --
-- Names of objects that would show other organizations' rows: views that run with their owner's rights, and tables
-- without row policies.
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace IN ('analyst'::regnamespace, 'analyst_direct'::regnamespace, 'analyst_past'::regnamespace, 'analyst_changed'::regnamespace)
  AND (c.relkind <> 'v' OR c.reloptions IS NULL OR NOT c.reloptions @> ARRAY['security_invoker=true', 'security_barrier=true'])
UNION
SELECT c.relname::text FROM information_schema.view_column_usage u
JOIN pg_class c ON c.oid = format('%I.%I', u.table_schema, u.table_name)::regclass
WHERE u.view_schema IN ('analyst', 'analyst_direct', 'analyst_past', 'analyst_changed') AND NOT c.relrowsecurity
ORDER BY 1;

-- find_missing_rights --
-- The rights that an existing role lacks to read views, as (kind, place, name): connect (database), schema (schema), view
-- (schema, view), column (table, column), policy (table).
WITH visible AS (
    SELECT schemaname::text AS place, viewname::text AS name FROM pg_views WHERE format('%I.%I', schemaname, viewname) = ANY(:views ::text[])
), used AS (
    SELECT DISTINCT table_name::text, column_name::text FROM information_schema.view_column_usage
    JOIN visible ON view_schema = place AND view_name = name WHERE table_schema = 'workbench')
SELECT 'connect', current_database()::text, '' WHERE NOT has_database_privilege(:role, current_database(), 'CONNECT')
UNION ALL
SELECT DISTINCT 'schema', place, '' FROM visible WHERE NOT has_schema_privilege(:role, place, 'USAGE')
UNION ALL
SELECT 'view', place, name FROM visible WHERE NOT has_table_privilege(:role, format('%I.%I', place, name), 'SELECT')
UNION ALL
SELECT 'column', table_name, column_name FROM used
WHERE NOT has_column_privilege(:role, format('workbench.%I', table_name), column_name, 'SELECT')
UNION ALL
SELECT 'policy', table_name, '' FROM (SELECT DISTINCT table_name FROM used) tables
WHERE NOT EXISTS (SELECT FROM pg_policies
                  WHERE schemaname = 'workbench' AND tablename = table_name AND policyname = :role)
ORDER BY 1, 2, 3;

-- The gateway's roles ----------------------------------------------------------------------------------------------

-- list_gateway_views --
-- The views that the gateway's roles see.
SELECT format('%I.%I', schemaname, viewname) FROM pg_views WHERE schemaname IN ('analyst', 'analyst_past', 'analyst_changed') ORDER BY 1;

-- stop_backend --
-- End a connection of a role; false if it is gone.
SELECT pg_terminate_backend(:pid ::integer);

-- Direct logins ----------------------------------------------------------------------------------------------------
-- Their roles are named `wb_direct_…`.

-- list_direct_views --
-- The views that a direct login sees: those of `analyst`, some of them replaced by a form without sealed addresses.
SELECT format('%I.%I', schemaname, viewname) FROM pg_views v
WHERE schemaname = 'analyst_direct'
   OR schemaname = 'analyst' AND viewname NOT IN (SELECT d.viewname FROM pg_views d WHERE d.schemaname = 'analyst_direct')
ORDER BY 1;

-- list_open_logins --
-- The direct logins to this database, with the organization that their policies name.
SELECT DISTINCT r.rolname::text, substring(p.qual FROM 'org_id = ''?([0-9]+)')::bigint
FROM pg_policies p JOIN pg_roles r ON r.rolname = p.policyname
WHERE p.schemaname = 'workbench' AND r.rolname ^@ 'wb_direct_' AND r.rolcanlogin
ORDER BY 1;

-- is_open --
-- Whether a role may log in.
SELECT rolcanlogin FROM pg_roles WHERE rolname = :role;

-- may_make_tables --
-- Whether a role may create temporary tables here, a right that the hardening script revokes.
SELECT has_database_privilege(:role, current_database(), 'TEMPORARY');

-- max_prepared_transactions --
-- How many transactions may be prepared: a prepared transaction keeps its locks without a session.
SELECT setting::integer FROM pg_settings WHERE name = 'max_prepared_transactions';

-- list_changed_logins --
-- The direct logins to this database with other settings than those that they began with: a role may change its own.
SELECT r.rolname::text FROM pg_roles r
WHERE r.rolname ^@ 'wb_direct_' AND r.rolcanlogin AND has_database_privilege(r.oid, current_database(), 'CONNECT')
  AND ARRAY(SELECT s.setdatabase || ' ' || unnest(s.setconfig) FROM pg_db_role_setting s WHERE s.setrole = r.oid ORDER BY 1)
      <> ARRAY(SELECT '0 ' || setting FROM unnest(:settings ::text[]) setting ORDER BY 1)
ORDER BY 1;

-- list_databases_with_settings --
-- The databases in which a role has settings of its own.
SELECT d.datname::text FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole JOIN pg_database d ON d.oid = s.setdatabase
WHERE r.rolname = :role;

-- list_sessions --
-- The sessions of a role, in any database.
SELECT pid, backend_start AS since, state FROM pg_stat_activity WHERE usename = :role ORDER BY backend_start;

-- end_sessions --
-- End all sessions of a role, in any database. A session that takes time to end may be found again by the next call.
SELECT coalesce(array_agg(pid) FILTER (WHERE pg_terminate_backend(pid)), '{}') FROM pg_stat_activity WHERE usename = :role;

-- end_excessive_sessions --
-- End sessions of direct logins that run too long, hold too much, or were revoked. A lock of a mode other than for
-- reading makes others wait: a login that changes its own role in an open transaction would delay its own
-- revocation. A session that listens in an open transaction lets the queue of notifications grow until no commit can
-- add one; reading its usage also drops what all sessions have read.
WITH queue AS MATERIALIZED (
    SELECT pg_notification_queue_usage() AS used
), locked AS MATERIALIZED (
    SELECT l.pid, count(*) AS locks, bool_or(l.locktype = 'relation' AND l.mode <> 'AccessShareLock') AS hinders
    FROM pg_locks l
    WHERE EXISTS (SELECT FROM pg_stat_activity WHERE usename ^@ 'wb_direct_' AND xact_start IS NOT NULL)
    GROUP BY l.pid
), judged AS MATERIALIZED (
    SELECT a.usename::text AS role, a.pid,
           CASE WHEN NOT r.rolcanlogin THEN 'revoked'
                WHEN a.datname <> current_database() THEN 'elsewhere'
                WHEN a.state = 'active' AND clock_timestamp() - a.query_start > :statement_seconds * interval '1 second' THEN 'statement'
                WHEN clock_timestamp() - a.xact_start > :transaction_seconds * interval '1 second' THEN 'transaction'
                WHEN a.xact_start IS NOT NULL AND queue.used > :queue_share THEN 'notifications'
                WHEN a.xact_start IS NOT NULL AND (locked.locks > :locks OR locked.hinders) THEN 'locks'
           END AS reason
    FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
    CROSS JOIN queue
    LEFT JOIN locked ON locked.pid = a.pid
    WHERE r.rolname ^@ 'wb_direct_' AND has_database_privilege(r.oid, current_database(), 'CONNECT')    -- of this database
)
SELECT role, pid, reason FROM judged WHERE reason IS NOT NULL AND pg_terminate_backend(pid);
