-- Broadcasts: an automation is started for every contact of a segment, or of the organization, by the engine, page by page.
ALTER TABLE workbench.starts ADD COLUMN automation_id uuid;

CREATE OR REPLACE VIEW workbench.starting_events WITH (security_invoker = true) AS
    SELECT *, NULL::uuid AS automation_id FROM workbench.log_events
    UNION ALL
    SELECT org_id, id, contact_id, event, created_at, created_at, payload, event || ':' || id, NULL::text, NULL::text, NULL::text, event,
           CASE WHEN automation_id IS NULL THEN event || ':' || coalesce(payload ->> 'segment', '') ELSE event END,
           jsonb_build_object('args', payload), false, automation_id
    FROM workbench.starts;

CREATE TABLE workbench.broadcasts (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    automation_id  uuid NOT NULL,
    segment        text NOT NULL,
    at             timestamptz NOT NULL,
    state          text NOT NULL CHECK (state IN ('planned', 'running', 'done', 'stopped')),
    reason         text,
    contacts       bigint NOT NULL,
    watermark      timestamptz NOT NULL,
    entered        bigint,
    departed       bigint,
    entries        bigint NOT NULL DEFAULT 0,
    last_start     uuid,
    created_at     timestamptz NOT NULL,
    created_by     uuid,
    started_at     timestamptz,
    ended_at       timestamptz,
    PRIMARY KEY (org_id, id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
CREATE INDEX broadcasts_due ON workbench.broadcasts (org_id, at) WHERE state IN ('planned', 'running');

CREATE VIEW workbench.recipients WITH (security_invoker = true) AS
    SELECT org_id, segment, contact_id, entered_at AS since FROM workbench.segment_members
    UNION ALL
    SELECT org_id, ''::text, id, created_at FROM workbench.contacts WHERE erased_at IS NULL AND merged_into IS NULL;
