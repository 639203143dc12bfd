-- Parts: events in files, sorted by contact and moment (docs/parts.md). Existing contacts get their number from the builder, page by page.
CREATE SEQUENCE workbench.contact_numbers;
ALTER TABLE workbench.contacts ADD COLUMN number bigint;
ALTER TABLE workbench.contacts ALTER COLUMN number SET DEFAULT nextval('workbench.contact_numbers');
CREATE INDEX events_stored ON ONLY workbench.events (org_id, stored_in);

CREATE TABLE workbench.part_progress (
    org_id             bigint PRIMARY KEY REFERENCES workbench.organizations (id),
    closed             bigint NOT NULL,
    buckets            integer NOT NULL,
    keys               text[] NOT NULL,
    folder             uuid NOT NULL,
    system_identifier  bigint NOT NULL,
    closed_at          timestamptz,
    rewritten_at       timestamptz,
    problem            text
);

CREATE TABLE workbench.parts (
    org_id           bigint NOT NULL,
    file             uuid NOT NULL,
    bucket           integer NOT NULL,
    month            text NOT NULL,
    partition        oid NOT NULL,
    rows             bigint NOT NULL,
    size             bigint NOT NULL,
    first_at         timestamptz NOT NULL,
    last_at          timestamptz NOT NULL,
    sha256           bytea NOT NULL,
    made_at          timestamptz NOT NULL,
    removed_at       timestamptz,
    PRIMARY KEY (org_id, file)
);

CREATE TABLE workbench.event_numbers (
    org_id  bigint NOT NULL,
    number  integer NOT NULL,
    event   text NOT NULL,
    PRIMARY KEY (org_id, number),
    UNIQUE (org_id, event)
);

CREATE TABLE workbench.touched_contacts (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    marked_in   bigint NOT NULL,
    PRIMARY KEY (org_id, contact_id)
);
