-- Checks of a server and its schema, for `migrate`, `workbench doctor` and `workbench up`.

-- read_server --
-- The server's version, the settings that durability depends on, whether its log includes errors, and the rights of
-- our role.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('log_min_messages') NOT IN ('log', 'fatal', 'panic') AS logs_errors,
       r.rolcreaterole OR r.rolsuper AS may_create_roles,
       r.rolsuper OR r.rolbypassrls AS bypasses_rls
FROM pg_roles r
WHERE r.rolname = current_user;

-- find_unprotected_tables --
-- Tables with rows of organizations that row-level security does not separate (see sql/row_security.sql).
SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND NOT (c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (
        SELECT FROM pg_policy WHERE polrelid = c.oid AND polname = 'own_organization'))
ORDER BY c.relname;

-- seconds_since_engine --
-- Seconds since any engine process last reported, or null if none ever did.
SELECT extract(epoch FROM clock_timestamp() - max(seen_at))::double precision FROM engines;

-- has_events --
-- Whether an organization has any event.
SELECT EXISTS (SELECT 1 FROM events WHERE org_id = :org_id);
