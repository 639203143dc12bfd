-- A change by an event has the moment at which the event was stored, as all events of its batch. Earlier rows have none: a backtest takes the
-- moment of the change, which is up to some microseconds later.
ALTER TABLE workbench.contact_changes ADD COLUMN event_at timestamptz;

CREATE OR REPLACE VIEW analyst.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id, event_at FROM workbench.contact_changes
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, created_at, jsonb_object_keys(attributes) AS key
          FROM workbench.events WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, e.created_at, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

CREATE OR REPLACE VIEW analyst_direct.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id, event_at FROM workbench.contact_changes WHERE field <> 'email'
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, created_at, jsonb_object_keys(attributes) AS key
          FROM workbench.events WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, e.created_at, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

-- The planner knows the contacts of an increment: it reads their rows in the order of the table.
CREATE OR REPLACE FUNCTION workbench.changed_contacts() RETURNS uuid[] LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.changed_contacts')::uuid[];

CREATE OR REPLACE VIEW analyst_changed.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events
    WHERE contact_id = ANY (workbench.changed_contacts());

CREATE OR REPLACE VIEW analyst_changed.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL AND id = ANY (workbench.changed_contacts());

CREATE OR REPLACE VIEW analyst_changed.segment_members WITH (security_invoker = true, security_barrier = true) AS
    SELECT segment, contact_id, entered_at FROM workbench.segment_members
    WHERE contact_id = ANY (workbench.changed_contacts());
