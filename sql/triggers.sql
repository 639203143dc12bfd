-- The trigger that marks contacts whose events change (`touched_contacts`, docs/parts.md). Run at every migration; idempotent, and
-- read-only when nothing is left to do. Citus accepts no trigger, and has no parts.
--
-- A merge, its undo, an erasure, an older process and a statement by hand are all seen, in the transaction that changes the events. Ingest
-- only inserts, so it pays nothing. The columns are those that parts have. A trigger of statements would not see a statement that names a
-- partition. The ids are inserted in order, so that two merges of the same contacts do not wait for each other; the condition keeps the
-- thousandth event of a contact from writing its row again.

DO $triggers$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')
        OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'workbench.events'::regclass AND tgname = 'touch_contacts') THEN
        RETURN;
    END IF;
    CREATE OR REPLACE FUNCTION workbench.touch_contacts() RETURNS trigger LANGUAGE plpgsql AS $touch$
    BEGIN
        INSERT INTO workbench.touched_contacts AS t (org_id, contact_id, marked_in)
        SELECT OLD.org_id, contact_id, pg_current_xact_id()::text::bigint
        FROM (SELECT OLD.contact_id UNION SELECT NEW.contact_id) AS c (contact_id)
        WHERE contact_id IS NOT NULL
        ORDER BY contact_id
        ON CONFLICT (org_id, contact_id) DO UPDATE SET marked_in = excluded.marked_in WHERE t.marked_in <> excluded.marked_in;
        RETURN NULL;
    END
    $touch$;
    CREATE TRIGGER touch_contacts
        AFTER UPDATE OF id, contact_id, event, occurred_at, created_at, stored_in, payload OR DELETE ON workbench.events
        FOR EACH ROW EXECUTE FUNCTION workbench.touch_contacts();
END
$triggers$;
