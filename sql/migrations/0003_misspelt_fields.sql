-- Fields of accepted events that look misspelt, and keys that refuse events with unknown fields.
ALTER TABLE workbench.api_keys ADD COLUMN strict boolean NOT NULL DEFAULT false;

CREATE TABLE workbench.misspelt_fields (
    org_id   bigint NOT NULL,
    day      timestamptz NOT NULL,
    key_id   uuid NOT NULL,
    field    text NOT NULL,
    count    bigint NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, day, key_id, field)
);
