-- Direct logins (`store.direct`): what they see, and the sessions they have. Their roles are named `wb_direct_…`.

-- direct_views --
-- What a direct login sees: the analyst's views, some of them in a form without sealed addresses.
SELECT format('%I.%I', schemaname, viewname) FROM pg_views v
WHERE schemaname = 'analyst_direct'
   OR schemaname = 'analyst' AND viewname NOT IN (SELECT d.viewname FROM pg_views d WHERE d.schemaname = 'analyst_direct')
ORDER BY 1;

-- open_logins --
-- The direct logins to this database, with the organization that their policies name.
SELECT DISTINCT r.rolname::text, substring(p.qual FROM 'org_id = ''?([0-9]+)')::bigint
FROM pg_policies p JOIN pg_roles r ON r.rolname = p.policyname
WHERE p.schemaname = 'workbench' AND r.rolname ^@ 'wb_direct_' AND r.rolcanlogin
ORDER BY 1;

-- is_open --
-- Whether a role may log in.
SELECT rolcanlogin FROM pg_roles WHERE rolname = :role;

-- may_make_tables --
-- Whether a role may make temporary tables here, which the hardening script takes from everybody.
SELECT has_database_privilege(:role, current_database(), 'TEMPORARY');

-- prepared_transactions --
-- How many transactions may be prepared: locks of such a one stay without a session.
SELECT setting::integer FROM pg_settings WHERE name = 'max_prepared_transactions';

-- sessions --
-- The sessions of a role, in any database.
SELECT pid, backend_start, state FROM pg_stat_activity WHERE usename = :role ORDER BY backend_start;

-- end_sessions --
-- End all sessions of a role, in any database; one that takes its time to end is found again by whoever asks at once.
SELECT coalesce(array_agg(pid) FILTER (WHERE pg_terminate_backend(pid)), '{}') FROM pg_stat_activity WHERE usename = :role;

-- places_set --
-- The databases in which a role has settings of its own.
SELECT d.datname::text FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole JOIN pg_database d ON d.oid = s.setdatabase
WHERE r.rolname = :role;

-- end_excesses --
-- End sessions of direct logins that run too long, hold too much, or may not be there any more. A lock other than for reading makes
-- others wait: whoever changes its own role in a transaction that stays open would put off being revoked. Whoever listens in a
-- transaction lets the queue of notifications grow until nobody can commit one; asking how full it is also drops what all have heard.
WITH queue AS MATERIALIZED (
    SELECT pg_notification_queue_usage() AS used
), held AS MATERIALIZED (
    SELECT l.pid, count(*) AS locks, bool_or(l.locktype = 'relation' AND l.mode <> 'AccessShareLock') AS hinders
    FROM pg_locks l
    WHERE EXISTS (SELECT FROM pg_stat_activity WHERE usename ^@ 'wb_direct_' AND xact_start IS NOT NULL)
    GROUP BY l.pid
), found AS MATERIALIZED (
    SELECT a.usename::text AS role, a.pid,
           CASE WHEN NOT r.rolcanlogin THEN 'revoked'
                WHEN a.datname <> current_database() THEN 'elsewhere'
                WHEN a.state = 'active' AND clock_timestamp() - a.query_start > :statement_seconds * interval '1 second' THEN 'statement'
                WHEN clock_timestamp() - a.xact_start > :transaction_seconds * interval '1 second' THEN 'transaction'
                WHEN a.xact_start IS NOT NULL AND queue.used > :queue_share THEN 'notifications'
                WHEN a.xact_start IS NOT NULL AND (held.locks > :locks OR held.hinders) THEN 'locks'
           END AS reason
    FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
    CROSS JOIN queue
    LEFT JOIN held ON held.pid = a.pid
    WHERE r.rolname ^@ 'wb_direct_' AND has_database_privilege(r.oid, current_database(), 'CONNECT')    -- of this database
)
SELECT role, pid, reason FROM found WHERE reason IS NOT NULL AND pg_terminate_backend(pid);
