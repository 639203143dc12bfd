-- The history of contacts. Changes that older processes make while they are connected are not in it.
CREATE TABLE workbench.contact_changes (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    changed_at  timestamptz NOT NULL,
    field       text NOT NULL,
    old         jsonb,
    new         jsonb,
    cause       text NOT NULL CHECK (cause IN ('event', 'step', 'merge', 'import', 'person', 'refresh')),
    cause_id    uuid,
    stored_in   bigint NOT NULL,
    PRIMARY KEY (org_id, contact_id, changed_at, field)
) PARTITION BY RANGE (changed_at);
CREATE TABLE workbench.contact_changes_other PARTITION OF workbench.contact_changes DEFAULT;
ALTER TABLE workbench.contact_changes ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id FROM workbench.contact_changes;

CREATE VIEW analyst_direct.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id FROM workbench.contact_changes WHERE field <> 'email';
