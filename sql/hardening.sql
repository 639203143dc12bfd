-- Revokes from PUBLIC what an analyst's login role must not use. Run by a superuser at every migration; idempotent, and
-- read-only when nothing is left to do.
--
-- An analyst's query can only be one SELECT (it runs in DECLARE CURSOR through the extended protocol). What is left to
-- close is what a SELECT can call or read: functions that act or reveal other sessions, and the catalogs. The owner of
-- the database (the application) and pg_monitor keep whatever PUBLIC loses; superusers are not affected.
--
-- Functions are chosen by rule, not by list, so that functions of newer Postgres versions are covered, too: everything
-- VOLATILE, everything called pg_*, and the families below.

DO $hardening$
DECLARE
    keepers text := (SELECT format('%I, pg_monitor', rolname)
                     FROM pg_database JOIN pg_roles ON pg_roles.oid = datdba WHERE datname = current_database());
    keeper  oid := (SELECT datdba FROM pg_database WHERE datname = current_database());
    item    record;
BEGIN
    PERFORM pg_advisory_xact_lock(7300452);     -- one migrating process at a time

    -- Functions. initprivs has the rights of PUBLIC when the database was created, also on a second run.
    FOR item IN
        SELECT p.oid::regprocedure::text AS name,
               has_function_privilege('public', p.oid, 'EXECUTE') AS is_open,
               has_function_privilege(keeper, p.oid, 'EXECUTE') AS is_kept
        FROM pg_proc p
        LEFT JOIN pg_init_privs i ON i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND p.prokind = 'f'
          AND NOT 'internal'::regtype = ANY (p.proargtypes)     -- only the server itself can call these
          AND p.prorettype <> 'trigger'::regtype
          AND (i.initprivs IS NULL OR EXISTS (SELECT FROM aclexplode(i.initprivs) WHERE grantee = 0))
          AND (p.provolatile = 'v'
               OR p.proname ~ '^(pg|lo|txid|has|inet_client|inet_server|ts_stat|ts_rewrite|binary_upgrade)_'
               OR p.proname ~ '_to_xml|^to_reg|^(row_security_active|aclexplode|current_setting|loread|lowrite)$'
               OR p.proname ~ '^(citus|master|run_command_on|worker)_')
          AND p.proname NOT IN (
              'random', 'random_normal', 'gen_random_uuid', 'uuidv4', 'uuidv7', 'array_sample', 'array_shuffle',
              'clock_timestamp', 'timeofday',
              'pg_typeof', 'pg_column_size', 'pg_size_pretty', 'pg_size_bytes', 'pg_input_is_valid', 'pg_collation_for',
              -- Citus needs these to run an analyst's query on its workers in that role; none reveals other
              -- transactions
              'assign_distributed_transaction_id', 'read_intermediate_result', 'read_intermediate_results')
    LOOP
        IF item.is_open THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', item.name);
        END IF;
        IF item.is_open OR NOT item.is_kept THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', item.name, keepers);
        END IF;
    END LOOP;

    -- Catalog tables and views. Parser and planner do not need the caller's right to read them.
    FOR item IN
        SELECT c.oid::regclass::text AS name,
               has_table_privilege('public', c.oid, 'SELECT') OR has_any_column_privilege('public', c.oid, 'SELECT') AS is_open,
               has_any_column_privilege(keeper, c.oid, 'SELECT') AS is_kept
        FROM pg_class c
        WHERE c.relnamespace = 'pg_catalog'::regnamespace
          AND c.relkind IN ('r', 'v', 'm', 'f')
          AND c.relname NOT IN ('pg_authid', 'pg_shadow', 'pg_subscription', 'pg_user_mapping', 'pg_statistic',
                                'pg_statistic_ext_data', 'pg_hba_file_rules', 'pg_ident_file_mappings', 'pg_file_settings',
                                'pg_config', 'pg_shmem_allocations', 'pg_backend_memory_contexts', 'pg_largeobject',
                                'pg_replication_origin_status')
    LOOP
        IF item.is_open THEN
            EXECUTE format('REVOKE ALL ON TABLE %s FROM PUBLIC', item.name);
        END IF;
        IF item.is_open OR NOT item.is_kept THEN
            EXECUTE format('GRANT SELECT ON TABLE %s TO %s', item.name, keepers);
        END IF;
    END LOOP;
    REVOKE ALL ON TABLE pg_subscription FROM PUBLIC;    -- pg_dump reads it: all columns but the connection string are granted below
    EXECUTE (
        SELECT format('GRANT SELECT (%s) ON TABLE pg_subscription TO %s', string_agg(quote_ident(attname), ', '), keepers)
        FROM pg_attribute
        WHERE attrelid = 'pg_subscription'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'subconninfo');

    -- Schemas, languages, databases.
    IF has_schema_privilege('public', 'information_schema', 'USAGE') THEN
        REVOKE ALL ON SCHEMA information_schema FROM PUBLIC;
        EXECUTE format('GRANT USAGE ON SCHEMA information_schema TO %s', keepers);
    END IF;
    IF has_schema_privilege('public', 'public', 'USAGE') THEN
        REVOKE ALL ON SCHEMA public FROM PUBLIC;
        EXECUTE format('GRANT USAGE, CREATE ON SCHEMA public TO %I', (SELECT rolname FROM pg_roles WHERE oid = keeper));
    END IF;
    FOR item IN SELECT lanname FROM pg_language WHERE lanpltrusted AND has_language_privilege('public', oid, 'USAGE') LOOP
        EXECUTE format('REVOKE USAGE ON LANGUAGE %I FROM PUBLIC', item.lanname);
        EXECUTE format('GRANT USAGE ON LANGUAGE %I TO %I', item.lanname, (SELECT rolname FROM pg_roles WHERE oid = keeper));
    END LOOP;
    FOR item IN
        SELECT datname FROM pg_database
        WHERE datname IN (current_database(), 'postgres', 'template1')
          AND (has_database_privilege('public', oid, 'CONNECT') OR has_database_privilege('public', oid, 'TEMPORARY'))
    LOOP
        EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', item.datname);
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %s', item.datname, keepers);
    END LOOP;
END
$hardening$;
