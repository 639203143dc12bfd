-- The triggers that mark contacts whose events or logs change (`touched_contacts`, docs/parts.md). Run at every migration; idempotent, and
-- read-only when nothing is left to do. Citus accepts no trigger, and has no parts.
--
-- A merge, its undo, an erasure, a reorganization, an older process and a statement by hand are all seen, in the transaction that changes
-- the rows. Ingest only inserts, so it pays nothing. The columns are those that parts have. For events, a trigger of statements would not see
-- a statement that names a partition. The ids are inserted in order, so that two merges of the same contacts do not wait for each other; the
-- condition keeps the thousandth event of a contact from writing its row again.

DO $triggers$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'workbench.events'::regclass AND tgname = 'touch_contacts') THEN
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
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'workbench.onchain_events'::regclass AND tgname = 'touch_contacts_of_deleted') THEN
        -- A statement of a reorganization changes logs of many contacts, hence triggers of statements: all its marks are inserted in order.
        -- A log that is stored, or gets its contact, with the number of its transaction is found by that; an older process does not set it.
        CREATE OR REPLACE FUNCTION workbench.touch_contacts_of_logs() RETURNS trigger LANGUAGE plpgsql AS $touch$
        DECLARE
            contacts record;
        BEGIN
            IF TG_OP = 'INSERT' THEN
                SELECT array_agg(org_id) AS orgs, array_agg(contact_id) AS ids INTO contacts FROM new_logs WHERE stored_in = 0;
            ELSIF TG_OP = 'DELETE' THEN
                SELECT array_agg(org_id) AS orgs, array_agg(contact_id) AS ids INTO contacts FROM old_logs;
            ELSE
                SELECT array_agg(org_id) AS orgs, array_agg(contact_id) AS ids INTO contacts FROM (
                    SELECT org_id, contact_id FROM old_logs
                    UNION ALL
                    SELECT n.org_id, n.contact_id FROM new_logs n JOIN old_logs o ON o.org_id = n.org_id AND o.id = n.id
                    WHERE o.contact_id IS NOT NULL OR o.stored_in = n.stored_in) AS c;
            END IF;
            INSERT INTO workbench.touched_contacts AS t (org_id, contact_id, marked_in)
            SELECT DISTINCT org_id, contact_id, pg_current_xact_id()::text::bigint
            FROM unnest(contacts.orgs, contacts.ids) AS c (org_id, contact_id)
            WHERE contact_id IS NOT NULL
            ORDER BY contact_id
            ON CONFLICT (org_id, contact_id) DO UPDATE SET marked_in = excluded.marked_in WHERE t.marked_in <> excluded.marked_in;
            RETURN NULL;
        END
        $touch$;
        CREATE TRIGGER touch_contacts_of_added AFTER INSERT ON workbench.onchain_events
            REFERENCING NEW TABLE AS new_logs FOR EACH STATEMENT EXECUTE FUNCTION workbench.touch_contacts_of_logs();
        CREATE TRIGGER touch_contacts_of_changed AFTER UPDATE ON workbench.onchain_events
            REFERENCING OLD TABLE AS old_logs NEW TABLE AS new_logs FOR EACH STATEMENT EXECUTE FUNCTION workbench.touch_contacts_of_logs();
        CREATE TRIGGER touch_contacts_of_deleted AFTER DELETE ON workbench.onchain_events
            REFERENCING OLD TABLE AS old_logs FOR EACH STATEMENT EXECUTE FUNCTION workbench.touch_contacts_of_logs();
    END IF;
END
$triggers$;
