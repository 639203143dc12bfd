-- Distributes the tables over the workers. Run by the coordinator of a Citus cluster at every migration; only tables
-- that are not distributed yet are changed. The first run moves all existing rows, so switch to Citus
-- early.
--
-- A table with org_id is distributed by it, colocated with `contacts`: all rows of an organization are on one node, and
-- so are its transactions and joins. The few tables without an organization, and `api_keys`, which identifies
-- organizations, are reference tables with a copy on every node. A table is distributed after the tables that it
-- references.

-- From before the server was Citus.
DROP TRIGGER IF EXISTS touch_contacts ON workbench.events;
DROP TRIGGER IF EXISTS touch_contacts_of_added ON workbench.onchain_events;
DROP TRIGGER IF EXISTS touch_contacts_of_changed ON workbench.onchain_events;
DROP TRIGGER IF EXISTS touch_contacts_of_deleted ON workbench.onchain_events;

DO $citus$
DECLARE
    item   record;
    moved  regclass[] := '{}';
    name   regclass;
BEGIN
    SET LOCAL citus.multi_shard_modify_mode = 'sequential';     -- required for foreign keys to reference tables
    SET LOCAL citus.enable_local_reference_table_foreign_keys = off;    -- while only some tables are distributed
    LOOP
        WITH waiting AS (
            SELECT c.oid::regclass AS name,
                   c.relname <> 'api_keys' AND EXISTS (
                       SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'org_id') AS of_organizations
            FROM pg_class c
            WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND NOT EXISTS (
                  SELECT FROM pg_dist_partition d WHERE d.logicalrelid = c.oid AND (d.partmethod = 'h' OR d.repmodel = 't'))
        )
        SELECT waiting.name, of_organizations INTO item
        FROM waiting
        WHERE NOT EXISTS (
            SELECT FROM pg_constraint f JOIN waiting before ON before.name = f.confrelid
            WHERE f.conrelid = waiting.name AND f.contype = 'f' AND f.confrelid <> f.conrelid)
        ORDER BY of_organizations, waiting.name <> 'workbench.contacts'::regclass, waiting.name::text
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF NOT item.of_organizations THEN
            PERFORM create_reference_table(item.name);
        ELSIF item.name = 'workbench.contacts'::regclass THEN
            PERFORM create_distributed_table(item.name, 'org_id', colocate_with => 'none');
        ELSE
            PERFORM create_distributed_table(item.name, 'org_id', colocate_with => 'workbench.contacts');
        END IF;
        moved := moved || item.name::regclass;
    END LOOP;
    FOREACH name IN ARRAY moved LOOP
        PERFORM truncate_local_data_after_distributing_table(name);
    END LOOP;
    -- Reader roles may use the shards by name, but not the tables here (api/store/sql_roles.py). Nodes added later lack
    -- the grant.
    FOR item IN
        SELECT DISTINCT reader FROM pg_policies, unnest(roles) AS reader
        WHERE schemaname = 'workbench' AND reader IN (SELECT rolname FROM pg_roles)
    LOOP
        PERFORM run_command_on_workers(format('GRANT USAGE ON SCHEMA workbench TO %I', item.reader));
    END LOOP;
END
$citus$;
