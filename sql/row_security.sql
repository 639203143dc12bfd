-- Row-level security for every table with an `org_id`. Run at every migration; idempotent, and read-only when nothing
-- is left to do.
--
-- The policies also apply to the tables' owner, which is the application. A session sees and writes the rows of the
-- organization in its setting `workbench.org`; with `*` those of all organizations, without the setting none. Analysts'
-- login roles have their own policies (api/store/sql_roles.py), and the setting gives them nothing. Partitions are read
-- through their table, so its policy applies.
--
-- The setting is read in a subquery, which is evaluated once per statement instead of once per row. Citus accepts no
-- policy with a subquery; its nodes learn the setting from each transaction that sets it (api/store/database.py).

DO $policies$
DECLARE
    setting  CONSTANT text := $$current_setting('workbench.org', true)$$;
    visible  CONSTANT text := format(
        CASE WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN '%s OR org_id = %s'
             ELSE '(SELECT %s) OR org_id = (SELECT %s)' END,
        setting || $$ = '*'$$, format($$nullif(nullif(%s, '*'), '')::bigint$$, setting));
    item     regclass;
BEGIN
    FOR item IN
        SELECT c.oid FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
        WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND NOT (c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (
              SELECT FROM pg_policy
              WHERE polrelid = c.oid AND polname = 'own_organization' AND polroles = ARRAY[c.relowner]))
        ORDER BY c.relname
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', item);
        EXECUTE format('DROP POLICY IF EXISTS own_organization ON %s', item);
        EXECUTE format('CREATE POLICY own_organization ON %s TO CURRENT_USER USING (%s)', item, visible);
    END LOOP;
END
$policies$;
