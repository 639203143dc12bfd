-- Pages that are made on a schedule and mailed. No older process reads these tables.
CREATE TABLE workbench.page_schedules (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    id          uuid NOT NULL,
    title       text NOT NULL,
    sections    jsonb NOT NULL,                 -- titles, queries and their values; emails are sealed
    recipients  text[] NOT NULL,                -- sealed
    cron        text NOT NULL,
    timezone    text NOT NULL,
    next_at     timestamptz,                    -- null: never again
    created_at  timestamptz NOT NULL,
    created_by  uuid NOT NULL,                  -- the key; once it is revoked or has expired, no page is made
    PRIMARY KEY (org_id, id)
);

-- The runs of a schedule. While `due_at` is set, a run is to be continued then; until then the process of the last claim works on it.
CREATE TABLE workbench.page_runs (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    schedule_id  uuid NOT NULL,
    at           timestamptz NOT NULL,          -- when it was planned for
    state        text NOT NULL CHECK (state IN ('planned', 'sending', 'done', 'failed')),
    due_at       timestamptz,
    claim        integer NOT NULL DEFAULT 0,
    tries        integer NOT NULL DEFAULT 0,    -- claims since one of them ended in order
    made_at      timestamptz,
    html         text,                          -- the page; null before it is made, and when a contact has been erased since
    email_html   text,                          -- the same without charts
    error        text,                          -- what went wrong, also in a part of the page
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, schedule_id, at),
    FOREIGN KEY (org_id, schedule_id) REFERENCES workbench.page_schedules (org_id, id) ON DELETE CASCADE,
    CHECK ((due_at IS NULL) = (state IN ('done', 'failed')))
);
CREATE INDEX page_runs_due ON workbench.page_runs (org_id, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE workbench.page_emails (
    org_id    bigint NOT NULL,
    run_id    uuid NOT NULL,
    number    integer NOT NULL,                 -- of the recipient in its schedule, from 1
    state     text NOT NULL CHECK (state IN ('waiting', 'sent', 'failed')),
    attempts  integer NOT NULL DEFAULT 0,
    error     text,
    PRIMARY KEY (org_id, run_id, number),
    FOREIGN KEY (org_id, run_id) REFERENCES workbench.page_runs (org_id, id) ON DELETE CASCADE
);
