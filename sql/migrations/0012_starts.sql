-- Starts: what starts entries other than events and logs. The API publishes no trigger for them while an older process is connected.
CREATE TABLE workbench.starts (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    contact_id   uuid NOT NULL,
    event        text NOT NULL,
    payload      jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL,
    merged_from  uuid,
    PRIMARY KEY (org_id, id)
);
CREATE INDEX starts_by_contact ON workbench.starts (org_id, contact_id, created_at);

CREATE VIEW workbench.starting_events WITH (security_invoker = true) AS
    SELECT * FROM workbench.log_events
    UNION ALL
    SELECT org_id, id, contact_id, event, created_at, created_at, payload, event || ':' || id, NULL::text, NULL::text, NULL::text, event,
           event || ':' || coalesce(payload ->> 'segment', ''), jsonb_build_object('args', payload), false
    FROM workbench.starts;
