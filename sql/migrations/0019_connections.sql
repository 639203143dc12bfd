-- Connections, and the mark of processes that know `send_via`: the API publishes none while an older process is connected.
CREATE TABLE workbench.connections (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    definition  jsonb NOT NULL,
    secrets     bytea NOT NULL,                 -- sealed
    next_at     timestamptz,                    -- with a rate: when the next message may leave
    queue_end   timestamptz,                    -- with a rate: when the last of the messages that wait for their turn is to come back
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    updated_by  uuid NOT NULL,
    PRIMARY KEY (org_id, name)
);
