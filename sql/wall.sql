-- Run at every migration: puts every table that has an `org_id` behind row-level security that its owner, who is the application,
-- cannot pass either. A session sees and writes the rows of the organization named by its setting `workbench.org`; those of
-- all with `*`; none without one. Analysts' login roles have policies of their own (api/store/roles.py), and no use for the setting.
-- Partitions are reached through their table, so its policy holds. Idempotent; when nothing is left to do it only reads.
-- Nodes of Citus hear the setting where a transaction sets it (api/store/database.py), and take no policy with a query in it, which
-- elsewhere asks once per statement instead of once per row.

DO $wall$
DECLARE
    setting  CONSTANT text := $$current_setting('workbench.org', true)$$;
    seen     CONSTANT text := format(
        CASE WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN '%s OR org_id = %s'
             ELSE '(SELECT %s) OR org_id = (SELECT %s)' END,
        setting || $$ = '*'$$, format($$nullif(nullif(%s, '*'), '')::bigint$$, setting));
    item     regclass;
BEGIN
    FOR item IN
        SELECT c.oid FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
        WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND NOT (c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (
              SELECT FROM pg_policy WHERE polrelid = c.oid AND polname = 'wall' AND polroles = ARRAY[c.relowner]))
        ORDER BY c.relname
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', item);
        EXECUTE format('DROP POLICY IF EXISTS wall ON %s', item);
        EXECUTE format('CREATE POLICY wall ON %s TO CURRENT_USER USING (%s)', item, seen);
    END LOOP;
END
$wall$;
