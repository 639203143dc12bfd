-- Increments of segments: a refresh reads the contacts that changed since the watermark of the last one. `migrate` makes these indexes
-- on the partitions that exist, one by one and during traffic.
ALTER TABLE workbench.segments ADD COLUMN watermark jsonb;

CREATE INDEX contact_changes_stored ON ONLY workbench.contact_changes USING brin (org_id, stored_in) WITH (autosummarize='true');
CREATE INDEX events_occurred ON ONLY workbench.events
    USING brin (org_id, occurred_at timestamptz_minmax_multi_ops, created_at timestamptz_minmax_multi_ops)
    WITH (pages_per_range='32', autosummarize='true');

-- For increments of segments: the rows of some contacts, a setting of the reader's connection, which can only remove rows. Only tables
-- with a row for each change of a contact that they show can be here.
CREATE SCHEMA analyst_changed;

CREATE FUNCTION workbench.changed_contacts() RETURNS uuid[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.changed_contacts')::uuid[];

CREATE VIEW analyst_changed.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events
    WHERE contact_id = ANY ((SELECT workbench.changed_contacts())::uuid[]);

CREATE VIEW analyst_changed.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL AND id = ANY ((SELECT workbench.changed_contacts())::uuid[]);

CREATE VIEW analyst_changed.segment_members WITH (security_invoker = true, security_barrier = true) AS
    SELECT segment, contact_id, entered_at FROM workbench.segment_members
    WHERE contact_id = ANY ((SELECT workbench.changed_contacts())::uuid[]);
