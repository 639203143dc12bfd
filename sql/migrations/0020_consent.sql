-- Topics, consents, and the mark of processes that know the topics of messages: the API publishes none while an older process is
-- connected.
ALTER TABLE workbench.messages ADD COLUMN topic text;

CREATE TABLE workbench.topics (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    label       text NOT NULL,
    labels      jsonb NOT NULL DEFAULT '{}',
    opt_in      text NOT NULL CHECK (opt_in IN ('none', 'double')),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    deleted_at  timestamptz,
    PRIMARY KEY (org_id, name)
);

CREATE TABLE workbench.consents (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    contact_id   uuid NOT NULL,
    topic        text,
    channel      text,
    granted      boolean NOT NULL,
    source       text NOT NULL CHECK (source IN ('preference_page', 'one_click', 'api', 'double_opt_in')),
    text_sha256  text,
    at           timestamptz NOT NULL,
    PRIMARY KEY (org_id, id),
    CHECK (num_nonnulls(topic, channel) = 1)
);
CREATE INDEX consents_by_contact ON workbench.consents (org_id, contact_id, topic, at);
ALTER TABLE workbench.topics ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.consents ENABLE ROW LEVEL SECURITY;

CREATE VIEW workbench.declined_topics WITH (security_invoker = true) AS
    SELECT c.org_id, c.id AS contact_id, t.name AS topic
    FROM workbench.contacts c
    JOIN workbench.topics t ON t.org_id = c.org_id
    WHERE NOT coalesce((
        SELECT n.granted FROM workbench.consents n
        WHERE n.org_id = c.org_id AND n.topic = t.name AND n.contact_id IN (
            SELECT f.id FROM workbench.contacts f
            WHERE f.org_id = c.org_id AND coalesce(c.merged_into, c.id) IN (f.id, f.merged_into))
        ORDER BY n.at DESC, n.id DESC LIMIT 1), t.opt_in = 'none');

CREATE VIEW analyst.consents WITH (security_invoker = true, security_barrier = true) AS
    SELECT n.id, coalesce(c.merged_into, n.contact_id) AS contact_id, n.topic, n.channel, n.granted, n.source, n.text_sha256, n.at
    FROM workbench.consents n
    JOIN workbench.contacts c ON c.org_id = n.org_id AND c.id = n.contact_id;

CREATE VIEW analyst.declined_topics WITH (security_invoker = true, security_barrier = true) AS
    SELECT c.id AS contact_id, t.name AS topic
    FROM workbench.contacts c
    JOIN workbench.topics t ON t.org_id = c.org_id
    WHERE c.merged_into IS NULL AND c.erased_at IS NULL AND NOT coalesce((
        SELECT n.granted FROM workbench.consents n
        WHERE n.org_id = c.org_id AND n.topic = t.name AND n.contact_id IN (
            SELECT f.id FROM workbench.contacts f WHERE f.org_id = c.org_id AND c.id IN (f.id, f.merged_into))
        ORDER BY n.at DESC, n.id DESC LIMIT 1), t.opt_in = 'none');
