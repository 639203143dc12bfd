-- Publications by keys that may only propose them. An older process refuses these keys.
ALTER TABLE workbench.organizations ADD COLUMN approvals boolean NOT NULL DEFAULT false;

-- What the server has found out about a draft, for a key that may only propose: each receipt is about one content and is issued to one key.
CREATE TABLE workbench.receipts (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    content_hash   bytea NOT NULL CHECK (length(content_hash) = 32),
    key_id         uuid NOT NULL,
    kind           text NOT NULL CHECK (kind IN ('check', 'backtest', 'impact')),
    result         jsonb NOT NULL,
    issued_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, automation_id, content_hash, key_id, kind),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);

-- Publications of such keys that wait for another person, or on which one has decided.
CREATE TABLE workbench.approvals (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    automation_id  uuid NOT NULL,
    content_hash   bytea NOT NULL CHECK (length(content_hash) = 32),
    requested_by   uuid NOT NULL,
    requested_at   timestamptz NOT NULL,
    state          text NOT NULL CHECK (state IN ('waiting', 'approved', 'rejected')),
    decided_by     uuid,
    decided_at     timestamptz,
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, automation_id, content_hash, requested_by),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id),
    CHECK ((state = 'waiting') = (decided_by IS NULL))
);
