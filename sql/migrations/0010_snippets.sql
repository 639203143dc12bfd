-- Snippets, and the mark of processes that know them and `locales`: the API publishes neither while an older process is connected.
CREATE TABLE workbench.snippets (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    version     integer NOT NULL,
    body        text NOT NULL,
    created_at  timestamptz NOT NULL,
    created_by  uuid NOT NULL,
    PRIMARY KEY (org_id, name, version)
);
