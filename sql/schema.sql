-- The whole schema, for reading. `sql/migrations/` builds the same schema step by step; a test compares the two.
--
-- Rules for every table, so that the same code runs on one Postgres and on Citus:
-- org_id comes first in every primary key, unique index and foreign key (except where no organization is known yet:
-- organizations.id and .name, and api_keys.key_hash, which identifies a caller; and in engines, clusters, channels, chains and
-- chain_blocks, which belong to no organization);
-- no triggers; no now() in an update: times and ids come from the caller, which reads one clock per unit of work.

CREATE SCHEMA workbench;
CREATE SCHEMA analyst;

-- Organizations and keys -------------------------------------------------------------------------------------------------------------

CREATE TABLE workbench.organizations (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9-]{1,40}$'),
    created_at  timestamptz NOT NULL,
    origins     text[] NOT NULL DEFAULT '{}',    -- web origins that may show in-app messages: https://app.example.com
    timezone    text,                            -- of contacts and automations without one; null: UTC
    approvals   boolean NOT NULL DEFAULT false   -- what a key proposes is published once another person has approved it
);

CREATE TABLE workbench.api_keys (
    org_id        bigint NOT NULL REFERENCES workbench.organizations (id),
    id            uuid NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('live', 'test', 'publishable', 'workbench')),
    key_hash      bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    prefix        text NOT NULL,
    last4         text NOT NULL,
    name          text NOT NULL DEFAULT '',
    scopes        text[] NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz,
    strict        boolean NOT NULL DEFAULT false,        -- events with unknown fields are refused
    PRIMARY KEY (org_id, id)
);

-- Fingerprints of the chains of secrets (api/crypto.py) with which processes may use this database, in one row: one fingerprint, and
-- during a rotation that of the next phase, too.
CREATE TABLE workbench.root_secrets (
    is_only_row   boolean PRIMARY KEY DEFAULT true CHECK (is_only_row),
    fingerprints  text[] NOT NULL
);

-- Contacts and their identifiers ---------------------------------------------------------------------------------

CREATE SEQUENCE workbench.contact_numbers;
CREATE TABLE workbench.contacts (
    org_id          bigint NOT NULL REFERENCES workbench.organizations (id),
    id              uuid NOT NULL,
    email           text,                       -- sealed (AES-SIV per organization), never clear text
    email_domain    text,
    wallet_address  text,
    wallet_raw      text,                       -- as first sent: lower-casing destroys Solana addresses
    external_id     text,
    attributes      jsonb NOT NULL DEFAULT '{}',
    tags            text[] NOT NULL DEFAULT '{}',
    opted_out       text[] NOT NULL DEFAULT '{}',        -- channels
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    erased_at       timestamptz,                -- set when erased: the row is only counted
    merged_into     uuid,                       -- the kept contact; this row keeps its values
    replaced        jsonb,                      -- passes old values from the update to the insert of `add_changing_events`
    number          bigint DEFAULT nextval('workbench.contact_numbers'),  -- in parts; null: an older contact of an organization without parts
    PRIMARY KEY (org_id, id)
) WITH (fillfactor = 80);
-- No index begins with (org_id, number): in a database without statistics, ingest looked contacts up by it, for 89 instead of 40 µs of server
-- CPU an event.
CREATE INDEX contacts_unnumbered ON workbench.contacts (org_id, id) WHERE number IS NULL;
CREATE INDEX contacts_created ON workbench.contacts USING brin (org_id, created_at timestamptz_minmax_multi_ops)   -- as events_occurred
    WITH (pages_per_range='32', autosummarize='true');
CREATE INDEX contacts_erased ON workbench.contacts (org_id, erased_at) WHERE erased_at IS NOT NULL;
CREATE INDEX contacts_merged ON workbench.contacts (org_id, merged_into) WHERE merged_into IS NOT NULL;

-- Merges: which contact absorbed which, and what it gained; the row of an undone merge stays. While `due_at` is set, rows of the
-- absorbed contact are still to be found and moved (api/contacts/merge.py).
CREATE TABLE workbench.contact_merges (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    keep_id      uuid NOT NULL,
    absorbed_id  uuid NOT NULL,
    gained       jsonb NOT NULL,                -- what undoing removes again; emails sealed
    identities   jsonb NOT NULL,                -- [kind, digest] of the identifiers that moved
    absorbed     jsonb NOT NULL,                -- the attributes the absorbed contact had
    created_at   timestamptz NOT NULL,
    undone_at    timestamptz,
    due_at       timestamptz,
    PRIMARY KEY (org_id, id)
);
CREATE UNIQUE INDEX contact_merges_live ON workbench.contact_merges (org_id, absorbed_id) WHERE undone_at IS NULL;

-- Changes of a contact, with the number of their transaction as in `events`. Attributes that an event alone of its batch changes are in the
-- row of that event instead; the views `contact_changes` have both. The moments of a contact's changes grow with each change of its own
-- values. A value that is in neither has not changed since the contact was created: the values of a moment are the `old` ones of the first
-- changes after it, and otherwise those of the contact. Rows stay with the contact that they are about when it is merged.
CREATE TABLE workbench.contact_changes (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    changed_at  timestamptz NOT NULL,           -- of an imported change: when its event occurred, unless the contact changed later
    field       text NOT NULL,                  -- email, walletAddress, externalId, attributes.NAME, tags, optedOut, segments.NAME, mergedInto
    old         jsonb,                          -- null: it had none; emails are sealed
    new         jsonb,
    cause       text NOT NULL CHECK (cause IN ('event', 'step', 'merge', 'import', 'person', 'refresh')),
    cause_id    uuid,                           -- the event (also of an import), the entry of the step, the merge, the key of the person
    stored_in   bigint NOT NULL,
    event_at    timestamptz,                    -- `created_at` of the event that is the cause: all events of a batch have the same
    PRIMARY KEY (org_id, contact_id, changed_at, field)
) PARTITION BY RANGE (changed_at);
CREATE INDEX contact_changes_stored ON workbench.contact_changes USING brin (org_id, stored_in) WITH (autosummarize='true');
CREATE TABLE workbench.contact_changes_other PARTITION OF workbench.contact_changes DEFAULT;    -- as events_other

-- Erased contacts to check once more, for rows that were being written during the erasure.
CREATE TABLE workbench.erasures (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    due_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, contact_id)
);

-- Wallets of erased contacts: earlier logs about them belong to no contact, and later logs make no new contact of them.
CREATE TABLE workbench.erased_wallets (
    org_id         bigint NOT NULL,
    wallet_digest  uuid NOT NULL,               -- as in `identities`
    erased_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, wallet_digest)
);

CREATE TABLE workbench.identities (
    org_id        bigint NOT NULL,
    kind          smallint NOT NULL CHECK (kind IN (1, 2, 3)),     -- wallet, email, external id
    value_digest  uuid NOT NULL,                                   -- blind index: 16 bytes of a keyed hash
    contact_id    uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (org_id, kind, value_digest),
    FOREIGN KEY (org_id, contact_id) REFERENCES workbench.contacts (org_id, id) ON DELETE CASCADE
);
-- org_id is not first here: without statistics the planner would use this index to look up (org_id, kind, value_digest).
CREATE INDEX identities_contact ON workbench.identities (contact_id, org_id);

CREATE TABLE workbench.identity_conflicts (
    org_id            bigint NOT NULL,
    id                uuid NOT NULL,
    event_id          uuid NOT NULL,
    contact_id        uuid NOT NULL,
    other_contact_id  uuid,
    kind              smallint NOT NULL CHECK (kind IN (1, 2, 3)),
    value_digest      uuid NOT NULL,
    outcome           text NOT NULL CHECK (outcome IN ('moved', 'left', 'replaced', 'kept')),
    created_at        timestamptz NOT NULL,
    resolved_by       uuid,                     -- the merge of the two contacts
    PRIMARY KEY (org_id, id)
);
CREATE INDEX identity_conflicts_by_contact ON workbench.identity_conflicts (org_id, contact_id);
CREATE INDEX identity_conflicts_by_other ON workbench.identity_conflicts (org_id, other_contact_id);

-- Events ------------------------------------------------------------------------------------------------------------

-- One row per (organization, idempotency key), for ever: it guarantees that an event is stored once.
CREATE TABLE workbench.idempotency_keys (
    org_id       bigint NOT NULL,
    key_digest   uuid NOT NULL,
    event_id     uuid NOT NULL,
    body_digest  uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (org_id, key_digest)
);

-- Keys that were sent again with another body: accepted as duplicates, kept for the debugger.
CREATE TABLE workbench.idempotency_mismatches (
    org_id      bigint NOT NULL,
    id          uuid NOT NULL,
    event_id    uuid NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, id)
);

CREATE TABLE workbench.events (
    org_id           bigint NOT NULL,
    id               uuid NOT NULL,
    contact_id       uuid NOT NULL,
    event            text NOT NULL,
    occurred_at      timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    payload          jsonb NOT NULL DEFAULT '{}',
    idempotency_key  text NOT NULL,
    wallet_address   text,                      -- the identifiers that this event carried
    email            text,                      -- sealed
    external_id      text,
    merged_from      uuid,                      -- its first contact, if that was merged into another
    stored_in        bigint NOT NULL DEFAULT 0,   -- the number of the transaction that stored it, for `as_of`; see `clusters`
    attributes       jsonb,                     -- as sent, if it alone of its batch changed attributes of its contact
    replaced         jsonb,                     -- attributes of the contact before it, at least the same; null: it had none
    changed_at       timestamptz,               -- the moment of this change, as in `contact_changes`
    PRIMARY KEY (org_id, id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX events_by_name ON workbench.events (org_id, event, created_at);
CREATE INDEX events_by_contact ON workbench.events (org_id, contact_id, created_at);
CREATE INDEX events_changed ON workbench.events (org_id, changed_at) WHERE changed_at IS NOT NULL;
CREATE INDEX events_stored ON workbench.events (org_id, stored_in);   -- not BRIN: new rows fill gaps in old pages
-- For increments of segments. Moved rows lie between newer ones, so a range of blocks has several intervals.
CREATE INDEX events_occurred ON workbench.events
    USING brin (org_id, occurred_at timestamptz_minmax_multi_ops, created_at timestamptz_minmax_multi_ops)
    WITH (pages_per_range='32', autosummarize='true');

-- The API and the importer attach partitions for months ahead of time; events of all other months are stored here.
CREATE TABLE workbench.events_other PARTITION OF workbench.events DEFAULT;

-- Parts: files of events, sorted by contact and moment, which answer questions about many events (docs/parts.md). The events of the
-- transactions with numbers below `closed` are in the files that are listed in `parts`, each once.
CREATE TABLE workbench.part_progress (
    org_id             bigint PRIMARY KEY REFERENCES workbench.organizations (id),
    closed             bigint NOT NULL,
    buckets            integer NOT NULL,        -- a contact is in the bucket of its number modulo this power of two
    keys               text[] NOT NULL,         -- of payloads, with columns of their own in new files
    folder             uuid NOT NULL,           -- where the files are
    system_identifier  bigint NOT NULL,         -- the Postgres cluster; in another one, the parts are dropped and built again
    closed_at          timestamptz,             -- events that were stored before this moment are in parts
    rewritten_at       timestamptz,
    problem            text,                    -- why the last run failed
    kept_at            timestamptz NOT NULL DEFAULT now(),  -- when an engine last looked after the folder; a lease of an hour on the parts
    -- `closed` and `rewritten_at`, by builders that add logs. A builder of a former version changes only these two, so that logs that it left
    -- out are found; a boolean would stay true.
    logs_state         text
);

CREATE TABLE workbench.parts (
    org_id           bigint NOT NULL,
    file             uuid NOT NULL,             -- its name; never used twice
    bucket           integer NOT NULL,
    month            text NOT NULL,             -- the partition of its events: 2026_11 for events_2026_11, other, or logs for the view events_logs
    partition        oid NOT NULL,              -- of that name: a month that was dropped and imported again has another
    rows             bigint NOT NULL,
    size             bigint NOT NULL,
    first_at         timestamptz NOT NULL,      -- the earliest and the latest event
    last_at          timestamptz NOT NULL,
    sha256           bytea NOT NULL,
    made_at          timestamptz NOT NULL,
    removed_at       timestamptz,               -- no longer valid; the file is deleted a while later
    PRIMARY KEY (org_id, file)
);

-- Numbers of event names in parts.
CREATE TABLE workbench.event_numbers (
    org_id  bigint NOT NULL,
    number  integer NOT NULL,
    event   text NOT NULL,
    PRIMARY KEY (org_id, number),
    UNIQUE (org_id, event)
);

-- Contacts whose events or logs were moved, changed or deleted since the parts were written. The transaction that does so marks them, by the
-- triggers of sql/triggers.sql. Both are read from their tables until the parts are rewritten.
CREATE TABLE workbench.touched_contacts (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    marked_in   bigint NOT NULL,                -- the id of the last transaction that marked it
    PRIMARY KEY (org_id, contact_id)
);

-- How often each event was received, by hour and by day, for the last 31 days, up to `event_counting.counted_until`
-- (api/catalog/counts.py).
CREATE TABLE workbench.event_hours (
    org_id  bigint NOT NULL,
    event   text NOT NULL,
    hour    timestamptz NOT NULL,
    count   bigint NOT NULL,
    PRIMARY KEY (org_id, event, hour)
);

CREATE TABLE workbench.event_days (
    org_id  bigint NOT NULL,
    event   text NOT NULL,
    day     timestamptz NOT NULL,
    count   bigint NOT NULL,
    PRIMARY KEY (org_id, event, day)
);

-- Up to which moment an organization's events are counted. Events dated before `closed_until` are noted in `late_events` when they are
-- stored. For an idle organization `closed_until` is in the year 9000, and it is not processed until an event is noted.
CREATE TABLE workbench.event_counting (
    org_id         bigint PRIMARY KEY,
    counted_until  timestamptz NOT NULL,
    closed_until   timestamptz NOT NULL CHECK (closed_until >= counted_until)
);

-- Events dated before the closed moment; added to the counts every few minutes.
CREATE TABLE workbench.late_events (
    org_id  bigint NOT NULL,
    source  uuid NOT NULL,              -- the import that adds to its own notes; otherwise unique to this note
    event   text NOT NULL,
    at      timestamptz NOT NULL,       -- the start of the hour, or of the five minutes, of their date
    count   bigint NOT NULL,
    PRIMARY KEY (org_id, source, event, at)
);

-- Transactions are numbered across Postgres clusters, so that a database that is dumped and restored elsewhere keeps their order:
-- a transaction's number is its id plus an offset of its cluster. `migrate` registers each cluster in which it finds the database.
CREATE TABLE workbench.clusters (
    first_number       bigint PRIMARY KEY,         -- above all numbers of earlier clusters
    system_identifier  bigint NOT NULL,
    added              bigint NOT NULL CHECK (added >= 0),
    since              timestamptz NOT NULL
);

-- Random names of notification channels about organizations: a direct login may LISTEN to any channel with a name it knows.
CREATE TABLE workbench.channels (
    purpose  text PRIMARY KEY,
    channel  text NOT NULL
);
INSERT INTO workbench.channels VALUES ('inbox', 'inbox_' || replace(gen_random_uuid()::text, '-', ''));

-- Dry runs, kept for seven days, with their own idempotency keys.
CREATE TABLE workbench.dry_runs (
    org_id           bigint NOT NULL,
    key_digest       uuid NOT NULL,
    id               uuid NOT NULL,
    event            text NOT NULL,
    contact_id       uuid,
    occurred_at      timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    payload          jsonb NOT NULL DEFAULT '{}',
    idempotency_key  text NOT NULL,
    matched          integer NOT NULL,
    PRIMARY KEY (org_id, key_digest)
);
CREATE INDEX dry_runs_by_id ON workbench.dry_runs (org_id, id);
CREATE INDEX dry_runs_by_contact ON workbench.dry_runs (org_id, contact_id);

-- Rejected events and duplicates, kept for seven days. Best effort (api/ingest/rejected.py).
CREATE TABLE workbench.event_notices (
    org_id           bigint NOT NULL,
    id               uuid NOT NULL,              -- of the time of writing, so that the live tail finds it
    outcome          text NOT NULL CHECK (outcome IN ('deduplicated', 'rejected')),
    event            text,                       -- as it was sent, where it could be read
    idempotency_key  text,
    field            text,
    reason           text,
    body             jsonb,                      -- keys with the JSON types of their values
    received_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, id)
);
CREATE INDEX event_notices_by_key ON workbench.event_notices (org_id, idempotency_key);

-- Fields of accepted events that look misspelt, counted by key and day; kept for seven days. Best effort (api/ingest/rejected.py).
CREATE TABLE workbench.misspelt_fields (
    org_id   bigint NOT NULL,
    day      timestamptz NOT NULL,
    key_id   uuid NOT NULL,
    field    text NOT NULL,                      -- its path: contact.userId
    count    bigint NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, day, key_id, field)
);

-- Progress of imported files: the first `lines` lines are done. Written in the transaction that stores their events.
CREATE TABLE workbench.imports (
    org_id       bigint NOT NULL,
    digest       uuid NOT NULL,                 -- of the file's bytes and the way they are read
    name         text NOT NULL,
    lines        bigint NOT NULL,
    stored       bigint NOT NULL,
    duplicates   bigint NOT NULL,
    rejected     bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    PRIMARY KEY (org_id, digest)
);

-- Automations -------------------------------------------------------------------------------------------------------

CREATE TABLE workbench.automations (
    org_id             bigint NOT NULL REFERENCES workbench.organizations (id),
    id                 uuid NOT NULL,
    name               text NOT NULL,
    trigger_spec       jsonb NOT NULL,
    graph              jsonb NOT NULL,
    active             boolean NOT NULL,
    published_version  integer,
    revision           integer NOT NULL,
    archived_at        timestamptz,
    created_at         timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL,
    activation         integer NOT NULL DEFAULT 1,      -- grows with every activation
    paused_at          timestamptz,                     -- only active automations can be paused
    live_since         timestamptz,                     -- logs of earlier blocks do not start it; null: from before created_at
    earlier_confirmations  integer,                     -- of an earlier version, until the follower has looked back
    PRIMARY KEY (org_id, id)
);

CREATE TABLE workbench.automation_versions (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    version        integer NOT NULL,
    trigger_spec   jsonb NOT NULL,
    graph          jsonb NOT NULL,
    published_at   timestamptz NOT NULL,
    published_by   uuid,
    awaits         text[] NOT NULL DEFAULT '{}',    -- the events, and with @ the attributes, that its entries can wait for or have as their goal
    PRIMARY KEY (org_id, automation_id, version),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
-- Drafts and versions that include snippets: whether one does is known without reading the others.
CREATE INDEX automations_including ON workbench.automations (org_id, id) WHERE strpos(graph::text, 'include') > 0;
CREATE INDEX automation_versions_pinning ON workbench.automation_versions (org_id, automation_id, version) WHERE graph ? 'snippets';

-- Incremented by every change of an organization's automations; ingest reads it in its own transaction, so cached triggers are
-- never stale.
CREATE TABLE workbench.automation_epochs (
    org_id      bigint PRIMARY KEY,
    epoch       bigint NOT NULL,
    stopped_at  timestamptz         -- since when everything is stopped: automations with this `paused_at` were stopped by it
);

CREATE TABLE workbench.audit_log (
    org_id      bigint NOT NULL,
    id          uuid NOT NULL,
    key_id      uuid,
    action      text NOT NULL,
    subject_id  uuid,
    detail      jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, id)
);

CREATE INDEX audit_log_subject ON workbench.audit_log (org_id, subject_id, id);

-- Entries: one per (automation, event) ------------------------------------------------------------------------------

CREATE TABLE workbench.entries (
    org_id              bigint NOT NULL,
    id                  uuid NOT NULL,
    automation_id       uuid NOT NULL,
    automation_version  integer,
    activation          integer NOT NULL DEFAULT 1,     -- of the automation when the event matched; entries of an earlier one are cancelled
    event_id            uuid NOT NULL,
    event_created_at    timestamptz NOT NULL,
    contact_id          uuid NOT NULL,
    state               text NOT NULL CHECK (state IN
        ('pending', 'running', 'waiting', 'retrying', 'paused', 'completed', 'exited', 'cancelled', 'dead')),
    outcome             text,
    node_id             text,
    step                integer NOT NULL DEFAULT 0,     -- steps taken so far
    attempts            integer NOT NULL DEFAULT 0,     -- claims of the current step
    lease_token         bigint NOT NULL DEFAULT 0,      -- grows with every claim; a write with an older token finds no row
    lease_until         timestamptz,
    due_at              timestamptz NOT NULL,
    last_error          text,
    since               timestamptz,                    -- when the wait at this node began
    since_id            uuid,                           -- of the events at `since`, those with a later id came after
    turn_at             timestamptz,                    -- when it was due, while other entries of its contact come first
    awaits              text[],                         -- the events, and with @ the attributes, that wake it early while it waits
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    merged_from         uuid,                           -- as in events
    request_id          text,                           -- of the request that sent the event, for logs
    joined_entry        uuid,                           -- the entry that has its event among those that it collected
    started_version     integer,                        -- the version it started with, if it was moved to another one
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, automation_id, event_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX entries_ready ON workbench.entries (org_id, due_at) WHERE state IN ('pending', 'waiting');
CREATE INDEX entries_retrying ON workbench.entries (org_id, due_at) WHERE state = 'retrying';
CREATE INDEX entries_running ON workbench.entries (org_id, lease_until) WHERE state = 'running';
CREATE INDEX entries_turns ON workbench.entries (org_id, contact_id, (state <> 'running'), coalesce(turn_at, due_at), event_id, automation_id)
    WHERE state IN ('running', 'retrying') OR (state IN ('pending', 'waiting') AND turn_at IS NOT NULL);
CREATE INDEX entries_paused ON workbench.entries (org_id, automation_id, id) WHERE state = 'paused';
CREATE INDEX entries_dead ON workbench.entries (org_id, automation_id, id) WHERE state = 'dead';
CREATE INDEX entries_by_automation ON workbench.entries (org_id, automation_id, id);
CREATE INDEX entries_by_contact ON workbench.entries (org_id, contact_id, automation_id, created_at);
CREATE INDEX entries_joined ON workbench.entries (org_id, joined_entry) WHERE joined_entry IS NOT NULL;
CREATE INDEX entries_awaiting ON workbench.entries (org_id, contact_id, id) WHERE state = 'waiting' AND awaits IS NOT NULL;

-- Every transition of an entry between states; the allowed pairs are those of workbench/language/run.py.
CREATE TABLE workbench.entry_transitions (
    org_id      bigint NOT NULL,
    entry_id    uuid NOT NULL,
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    from_state  text NOT NULL,
    to_state    text NOT NULL,
    at          timestamptz NOT NULL,
    reason      text,
    PRIMARY KEY (org_id, entry_id, seq),
    CONSTRAINT known_move CHECK ((from_state, to_state) IN (
        ('pending', 'running'), ('pending', 'cancelled'),
        ('waiting', 'running'), ('waiting', 'cancelled'),
        ('retrying', 'running'), ('retrying', 'cancelled'),
        ('running', 'waiting'), ('running', 'retrying'), ('running', 'completed'), ('running', 'exited'),
        ('running', 'cancelled'), ('running', 'dead'),
        ('running', 'paused'), ('paused', 'pending'), ('paused', 'cancelled'),
        ('cancelled', 'pending'), ('dead', 'pending')))
);

CREATE TABLE workbench.entry_steps (
    org_id    bigint NOT NULL,
    entry_id  uuid NOT NULL,
    claim     bigint NOT NULL,                  -- the lease token of the claim, which grows over the entry's life
    step      integer NOT NULL,
    attempt   integer NOT NULL,
    node_id   text NOT NULL,
    kind      text NOT NULL,
    outcome   text NOT NULL,
    handle    text,                             -- the branch taken
    detail    jsonb NOT NULL DEFAULT '{}',
    at        timestamptz NOT NULL,
    PRIMARY KEY (org_id, entry_id, claim, step)
);

-- Moves of waiting entries of an automation to a version. The entries are fixed when the move starts, and are moved page by page.
CREATE TABLE workbench.moves (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    automation_id  uuid NOT NULL,
    version        integer NOT NULL,        -- that the entries are moved to
    mode           jsonb NOT NULL,          -- "safe", or the ids of nodes by those in earlier versions
    state          text NOT NULL CHECK (state IN ('planned', 'running', 'done', 'stopped', 'undoing', 'undone')),
    after          uuid,                    -- the last entry of the latest page
    patient_until  timestamptz NOT NULL,    -- until then the move comes back to entries that an engine is working on
    created_at     timestamptz NOT NULL,
    created_by     uuid,
    ended_at       timestamptz,
    PRIMARY KEY (org_id, id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
CREATE INDEX moves_open ON workbench.moves (org_id, id) WHERE state IN ('planned', 'running', 'undoing');
CREATE INDEX moves_by_automation ON workbench.moves (org_id, automation_id, id);

-- An entry in a move: moved, or with a reason why not; without both it is still to be looked at.
CREATE TABLE workbench.entry_moves (
    org_id         bigint NOT NULL,
    move_id        uuid NOT NULL,
    entry_id       uuid NOT NULL,
    from_version   integer NOT NULL,
    from_node_id   text,
    from_step      integer,         -- its number of steps before
    node_id        text,            -- where it waits in the new version
    until          timestamptz,     -- predicted: the end of the wait,
    outcome        text,            -- its outcome,
    next_node_id   text,            -- the next node,
    ends           text,            -- or the outcome of the entry, if it ends there
    reason         text,            -- why it was not moved
    moved_at       timestamptz,
    kept           text,            -- why it was not moved back
    moved_back_at  timestamptz,
    PRIMARY KEY (org_id, move_id, entry_id)
);
CREATE INDEX entry_moves_by_entry ON workbench.entry_moves (org_id, entry_id, move_id);

-- Messages: a row before each effect, one permanent id per (entry, node, visit) -----------------------------------------

CREATE TABLE workbench.messages (
    org_id          bigint NOT NULL,
    id              uuid NOT NULL,
    contact_id      uuid NOT NULL,
    automation_id   uuid NOT NULL,
    entry_id        uuid NOT NULL,
    node_id         text NOT NULL,
    visit           integer NOT NULL,
    channel         text NOT NULL,              -- a name in workbench/language/channel.py, as in all tables
    status          text NOT NULL CHECK (status IN
        ('queued', 'sending', 'sent', 'delivered', 'failed', 'skipped', 'unknown')),
    wallet_address  text,
    recipient       text,                       -- the sealed address of an email, the URL of a webhook
    html            boolean NOT NULL DEFAULT false,
    lease_token     bigint,                     -- of the claim that sends or sent it
    in_doubt        boolean NOT NULL DEFAULT false,     -- an attempt may have arrived, whatever the result of later ones
    subject         text,
    body            text,
    extra           jsonb,
    created_at      timestamptz NOT NULL,
    sent_at         timestamptz,
    delivered_at    timestamptz,
    track_clicks    boolean NOT NULL DEFAULT false,     -- links are replaced by tracked ones when it leaves; `body` keeps them
    feedback        text,                       -- bounced, complained: reported after an email was sent
    topic           text,                       -- not sent to contacts that declined it
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, entry_id, node_id, visit)
);
CREATE INDEX messages_inbox ON workbench.messages (org_id, wallet_address, created_at)
    WHERE channel = 'inapp' AND delivered_at IS NULL;
CREATE INDEX messages_by_contact ON workbench.messages (org_id, contact_id, created_at);

-- Outcomes of messages, written together with the status they lead to. `retrying`: an attempt failed and another one follows. Usage
-- counts the rows with `sent`. The key begins with the time: a month is one range, and new rows are added at its end.
CREATE TABLE workbench.message_outcomes (
    org_id      bigint NOT NULL,
    at          timestamptz NOT NULL,
    message_id  uuid NOT NULL,
    outcome     text NOT NULL CHECK (outcome IN ('sent', 'delivered', 'retrying', 'failed', 'skipped', 'unknown')),
    channel     text NOT NULL,
    reason      text,                           -- one word, never a value of the contact
    PRIMARY KEY (org_id, at, message_id, outcome) INCLUDE (channel)
);

-- Consent -----------------------------------------------------------------------------------------------------------

-- What messages are about. `opt_in`: whether contacts get the messages until they decline, or only after they have confirmed.
CREATE TABLE workbench.topics (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    label       text NOT NULL,
    labels      jsonb NOT NULL DEFAULT '{}',        -- in other languages, by locale
    opt_in      text NOT NULL CHECK (opt_in IN ('none', 'double')),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    deleted_at  timestamptz,                    -- deleted topics keep the choices of contacts
    PRIMARY KEY (org_id, name)
);

-- Choices of contacts, of a topic or a channel. Rows are only added; the latest one of a topic counts.
CREATE TABLE workbench.consents (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    contact_id   uuid NOT NULL,                 -- that of a merged contact stays: its consents are read with the kept contact's
    topic        text,
    channel      text,
    granted      boolean NOT NULL,
    source       text NOT NULL CHECK (source IN ('preference_page', 'one_click', 'api', 'double_opt_in')),
    text_sha256  text,                          -- of the text that the contact saw, in hex
    at           timestamptz NOT NULL,
    PRIMARY KEY (org_id, id),
    CHECK (num_nonnulls(topic, channel) = 1)
);
CREATE INDEX consents_by_contact ON workbench.consents (org_id, contact_id, topic, at);

-- The topics that a contact does not get, by its latest choice and those of contacts that were merged into it.
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

-- Delivery ----------------------------------------------------------------------------------------------------------

-- Addresses that get no more messages of a channel; stored as blind indexes, so a suppression survives the erasure of its contact.
CREATE TABLE workbench.suppressions (
    org_id          bigint NOT NULL,
    channel         text NOT NULL,
    address_digest  uuid NOT NULL,
    reason          text NOT NULL CHECK (reason IN ('unsubscribed', 'opted_out')),
    created_at      timestamptz NOT NULL,
    cause           text,                       -- bounced, complained: the reason in place of `opted_out`
    PRIMARY KEY (org_id, channel, address_digest)
);

-- Sealed secrets that sign webhooks. After a rotation the previous secret signs, too, until `previous_until`.
CREATE TABLE workbench.webhook_secrets (
    org_id          bigint PRIMARY KEY,
    secret          bytea NOT NULL,
    previous        bytea,
    previous_until  timestamptz,
    created_at      timestamptz NOT NULL,
    CHECK ((previous IS NULL) = (previous_until IS NULL))
);

-- Webhook URLs that answered 410: nothing is sent to them until they are opened again.
CREATE TABLE workbench.closed_endpoints (
    org_id      bigint NOT NULL,
    url_digest  uuid NOT NULL,                  -- blind index: a URL may contain values of contacts
    host        text NOT NULL,
    closed_at   timestamptz NOT NULL,
    PRIMARY KEY (org_id, url_digest)
);

-- Sign-in challenges of wallets: valid for minutes, deleted by the sign-in that uses them, by a later one, or within a day.
CREATE TABLE workbench.inapp_challenges (
    org_id          bigint NOT NULL,
    nonce           text NOT NULL,
    wallet_address  text NOT NULL,
    key_id          uuid NOT NULL,              -- the publishable key of the request; revoking it ends the session, too
    origin          text NOT NULL,
    chain_id        bigint NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, nonce)
);
CREATE INDEX inapp_challenges_by_end ON workbench.inapp_challenges (org_id, expires_at);

-- Texts that messages include, in versions. Drafts use the newest one; a version of an automation has a copy in its graph.
CREATE TABLE workbench.snippets (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    version     integer NOT NULL,
    body        text NOT NULL,
    created_at  timestamptz NOT NULL,
    created_by  uuid NOT NULL,
    PRIMARY KEY (org_id, name, version)
);

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

-- Pages for people without a notebook: results of queries that are made on a schedule and mailed (api/page_schedules).
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
    in_doubt  boolean NOT NULL DEFAULT false,   -- an attempt was not answered, or not recorded: it may have arrived
    PRIMARY KEY (org_id, run_id, number),
    FOREIGN KEY (org_id, run_id) REFERENCES workbench.page_runs (org_id, id) ON DELETE CASCADE
);

-- Requests to providers, such as chat services, that messages are sent by; they are read when a message leaves.
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

-- In-app messages that authors send to their own wallets to try an automation: kept apart from messages, so they are never counted;
-- deleted when they are acknowledged, or after a day. `contact_id`: the contact that the texts may mention.
CREATE TABLE workbench.test_pushes (
    org_id          bigint NOT NULL,
    id              uuid NOT NULL,
    contact_id      uuid,
    wallet_address  text NOT NULL,
    title           text NOT NULL,
    body            text NOT NULL,
    extra           jsonb NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, id)
);
CREATE INDEX test_pushes_by_wallet ON workbench.test_pushes (org_id, wallet_address, created_at);
CREATE INDEX test_pushes_by_age ON workbench.test_pushes (org_id, created_at);

-- Segments ----------------------------------------------------------------------------------------------------------

-- Named groups of contacts: the result of a query that is refreshed, or a frozen audience.
CREATE TABLE workbench.segments (
    org_id         bigint NOT NULL REFERENCES workbench.organizations (id),
    id             uuid NOT NULL,
    name           text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    kind           text NOT NULL CHECK (kind IN ('query', 'audience')),
    sql            text,                        -- as it was written
    params         jsonb,                       -- its parameters, addresses sealed
    every_seconds  integer CHECK (every_seconds BETWEEN 60 AND 604800),
    provenance     jsonb NOT NULL DEFAULT '{}', -- of an audience: the origin of its frame, and how many rows were used
    size           integer NOT NULL,            -- at the last refresh
    refreshed_at   timestamptz,                 -- null: an audience with parts still to arrive; its members are the earlier ones
    last_error     text,                        -- why the last refresh failed; the members are the earlier ones
    failing_since  timestamptz,
    failures       integer NOT NULL DEFAULT 0,  -- since it last succeeded
    due_at         timestamptz,
    attempted_at   timestamptz,
    lease_token    bigint NOT NULL DEFAULT 0,   -- grows with every claim; a write with an older token finds no row
    lease_until    timestamptz,
    revision       integer NOT NULL,
    created_at     timestamptz NOT NULL,
    created_by     uuid NOT NULL,
    updated_at     timestamptz NOT NULL,
    updated_by     uuid NOT NULL,
    archived_at    timestamptz,
    watermark      jsonb,                       -- what its members were computed from; null: the next refresh reads everything
    PRIMARY KEY (org_id, id),
    CHECK ((kind = 'query') = (num_nonnulls(sql, every_seconds) = 2))
);
CREATE UNIQUE INDEX segments_by_name ON workbench.segments (org_id, name) WHERE archived_at IS NULL;
CREATE INDEX segments_due ON workbench.segments (org_id, due_at) WHERE due_at IS NOT NULL;

-- Sizes of segments over time: a row for each refresh that changed something.
CREATE TABLE workbench.segment_sizes (
    org_id      bigint NOT NULL,
    segment_id  uuid NOT NULL,
    at          timestamptz NOT NULL,
    size        integer NOT NULL,
    entered     integer NOT NULL,
    departed    integer NOT NULL,
    PRIMARY KEY (org_id, segment_id, at),
    FOREIGN KEY (org_id, segment_id) REFERENCES workbench.segments (org_id, id)
);

CREATE TABLE workbench.segment_members (
    org_id      bigint NOT NULL,
    segment     text NOT NULL,
    contact_id  uuid NOT NULL,
    entered_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, segment, contact_id),
    FOREIGN KEY (org_id, contact_id) REFERENCES workbench.contacts (org_id, id) ON DELETE CASCADE
);
CREATE INDEX segment_members_by_contact ON workbench.segment_members (org_id, contact_id);

-- Contacts of an audience that arrives in parts, until the last part arrives.
CREATE TABLE workbench.audience_parts (
    org_id      bigint NOT NULL,
    segment_id  uuid NOT NULL,
    contact_id  uuid NOT NULL,
    PRIMARY KEY (org_id, segment_id, contact_id),
    FOREIGN KEY (org_id, segment_id) REFERENCES workbench.segments (org_id, id)
);

-- Chains ------------------------------------------------------------------------------------------------------------

-- A row for every log that the organization's automations or watches select. When a log's block is dropped, the log is `removed`; when
-- it comes back, in another block or at another place, the row and the entries it started are restored.
CREATE TABLE workbench.onchain_events (
    org_id        bigint NOT NULL,
    id            uuid NOT NULL,
    contact_id    uuid,                         -- of the wallet that the log is about, if there is one
    chain_id      bigint NOT NULL,
    contract      text NOT NULL,                -- addresses and hashes in lower case
    event         text NOT NULL,
    signature     text NOT NULL,                -- the hashed form: Transfer(address,address,uint256)
    tx_hash       text NOT NULL,
    log_index     integer NOT NULL,             -- in its current or last block
    digest        uuid NOT NULL,                -- of contract, topics and data: identifies the log in its transaction
    block_number  bigint NOT NULL,
    block_hash    text NOT NULL,
    block_time    timestamptz NOT NULL,
    args          jsonb NOT NULL DEFAULT '{}',  -- empty if the log does not match the signature
    removed       boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL,         -- when it was first seen
    merged_from   uuid,                         -- as in events
    stored_in     bigint NOT NULL DEFAULT 0,    -- the number of the transaction that stored it, or gave it its contact
    PRIMARY KEY (org_id, id)
);
CREATE UNIQUE INDEX onchain_events_in_chain ON workbench.onchain_events (org_id, chain_id, tx_hash, log_index) WHERE NOT removed;
CREATE INDEX onchain_events_dropped ON workbench.onchain_events (org_id, chain_id, tx_hash, log_index) WHERE removed;
CREATE INDEX onchain_events_by_block ON workbench.onchain_events (org_id, block_number, chain_id);
CREATE INDEX onchain_events_by_contract ON workbench.onchain_events (org_id, contract, id);
CREATE INDEX onchain_events_by_contact ON workbench.onchain_events (org_id, contact_id, created_at);
CREATE INDEX onchain_events_stored ON workbench.onchain_events (org_id, stored_in) WHERE contact_id IS NOT NULL;

-- Logs in the shape of events. For waits and goals: `event` is the name that they use, `payload` has all parameters. For triggers:
-- `contract_event` is the name of the event, and `source` is what they match (`LogSource.key` in workbench/language/onchain.py); the
-- parameters are in `args` of `log`, since each automation has names of its own for them.
CREATE VIEW workbench.log_events WITH (security_invoker = true) AS
    SELECT org_id, id, contact_id, contract || ':' || lower(event) AS event, block_time AS occurred_at, created_at,
           jsonb_build_object('chainId', chain_id, 'contract', contract, 'txHash', tx_hash, 'logIndex', log_index,
                              'blockNumber', block_number) || args AS payload,
           chain_id || ':' || tx_hash || ':' || log_index AS idempotency_key,
           NULL::text AS wallet_address, NULL::text AS email, NULL::text AS external_id, event AS contract_event,
           chain_id || ':' || contract || ':' || signature AS source,
           jsonb_build_object('chainId', chain_id, 'contract', contract, 'txHash', tx_hash, 'logIndex', log_index,
                              'blockNumber', block_number, 'args', args) AS log, removed
    FROM workbench.onchain_events;

-- The logs that reports count and parts have; `events` of sql/reports/macros.sql reads the same from the table. The view has the name of a
-- partition of events, because files of parts belong to one.
CREATE VIEW workbench.events_logs WITH (security_invoker = true) AS
    SELECT org_id, id, contact_id, contract || ':' || lower(event) AS event, block_time AS occurred_at, created_at, stored_in,
           jsonb_build_object('chainId', chain_id, 'contract', contract, 'txHash', tx_hash, 'logIndex', log_index,
                              'blockNumber', block_number) || args AS payload
    FROM workbench.onchain_events
    WHERE contact_id IS NOT NULL AND NOT removed;

-- What goes into parts.
CREATE VIEW workbench.events_and_logs WITH (security_invoker = true) AS
    SELECT org_id, id, contact_id, event, occurred_at, created_at, stored_in, payload, false AS is_log FROM workbench.events
    UNION ALL
    SELECT org_id, id, contact_id, event, occurred_at, created_at, stored_in, payload, true FROM workbench.events_logs;

-- Starts: a row for each contact that entered or left a segment while an automation started from that, and for each recipient of a
-- broadcast.
CREATE TABLE workbench.starts (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    contact_id     uuid NOT NULL,
    event          text NOT NULL,                 -- the type of the trigger, such as segment_entered
    payload        jsonb NOT NULL DEFAULT '{}',   -- {"segment": …}
    created_at     timestamptz NOT NULL,          -- the moment of the refresh, as `entered_at` of its members, or the contact's in a broadcast
    merged_from    uuid,                          -- as in events
    automation_id  uuid,                          -- of the broadcast; null: any automation that starts from the change
    PRIMARY KEY (org_id, id)
);
CREATE INDEX starts_by_contact ON workbench.starts (org_id, contact_id, created_at);

-- Logs and starts, in the shape of logs: the engine and explanations read both alike.
CREATE VIEW workbench.starting_events WITH (security_invoker = true) AS
    SELECT *, NULL::uuid AS automation_id FROM workbench.log_events
    UNION ALL
    SELECT org_id, id, contact_id, event, created_at, created_at, payload, event || ':' || id, NULL::text, NULL::text, NULL::text, event,
           CASE WHEN automation_id IS NULL THEN event || ':' || coalesce(payload ->> 'segment', '') ELSE event END,
           jsonb_build_object('args', payload), false, automation_id
    FROM workbench.starts;

-- Broadcasts: an automation is started for every contact of a segment, or of the organization, by the engine, page by page.
CREATE TABLE workbench.broadcasts (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    automation_id  uuid NOT NULL,
    segment        text NOT NULL,               -- empty: all contacts of the organization
    at             timestamptz NOT NULL,
    state          text NOT NULL CHECK (state IN ('planned', 'running', 'done', 'stopped')),
    reason         text,                        -- why it was stopped
    contacts       bigint NOT NULL,             -- at the watermark
    watermark      timestamptz NOT NULL,        -- the moment up to which the counted contacts entered
    entered        bigint,                      -- between the watermark and its start; null: it has not started
    departed       bigint,
    entries        bigint NOT NULL DEFAULT 0,   -- made so far
    last_start     uuid,                        -- up to here
    created_at     timestamptz NOT NULL,
    created_by     uuid,
    started_at     timestamptz,
    ended_at       timestamptz,
    scheduled      boolean NOT NULL DEFAULT false,      -- a run of a schedule
    PRIMARY KEY (org_id, id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
CREATE INDEX broadcasts_due ON workbench.broadcasts (org_id, at) WHERE state IN ('planned', 'running');

-- How far the runs of each schedule are planned.
CREATE TABLE workbench.schedules (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    planned_until  timestamptz NOT NULL,
    PRIMARY KEY (org_id, automation_id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);

-- The contacts that a broadcast to a segment starts, with the time since when; with an empty name all contacts.
CREATE VIEW workbench.recipients WITH (security_invoker = true) AS
    SELECT org_id, segment, contact_id, entered_at AS since FROM workbench.segment_members
    UNION ALL
    SELECT org_id, ''::text, id, created_at FROM workbench.contacts WHERE erased_at IS NULL AND merged_into IS NULL;

-- Watches: contract events that are kept although no automation starts from them.
CREATE TABLE workbench.chain_watches (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    chain_id    bigint NOT NULL,
    contract    text NOT NULL,
    signature   text NOT NULL,
    wallet_arg  text,                           -- the parameter with the wallet of the contact
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, chain_id, contract, signature)
);

-- Logs that the database refuses to store, with the rule they break. They block no other logs; the operator sees them.
CREATE TABLE workbench.chain_dead_logs (
    org_id        bigint NOT NULL REFERENCES workbench.organizations (id),
    chain_id      bigint NOT NULL,
    tx_hash       text NOT NULL,
    log_index     integer NOT NULL,
    contract      text NOT NULL,
    signature     text NOT NULL,
    block_number  bigint NOT NULL,
    reason        text NOT NULL,
    died_at       timestamptz NOT NULL,
    PRIMARY KEY (org_id, chain_id, tx_hash, log_index)
);

-- Logs that passed the filters of automations but are about wallets without a contact, by hour: `created` made a contact, the others
-- started nothing. Kept for seven days.
CREATE TABLE workbench.unknown_wallet_counts (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    hour           timestamptz NOT NULL,
    what           text NOT NULL CHECK (what IN ('created', 'unknown', 'limit', 'zero_address', 'erased')),
    count          bigint NOT NULL,
    PRIMARY KEY (org_id, automation_id, hour, what)
);

-- How far each chain has been read. The token grows with every follower, and a write with an older token finds no row.
CREATE TABLE workbench.chains (
    chain_id      bigint PRIMARY KEY,
    token         bigint NOT NULL,
    lease_until   timestamptz NOT NULL,
    block_number  bigint,                       -- all logs up to here are stored; null: reading begins at the head
    head          bigint,
    read_at       timestamptz,
    problem       text,                         -- what prevents the follower from reading now
    dropping_above  bigint                      -- a reorganization: logs of later blocks must be dropped first
);

-- Hashes of blocks that were read, to detect reorganizations: the newest blocks, and the first of the chain.
CREATE TABLE workbench.chain_blocks (
    chain_id  bigint NOT NULL,
    number    bigint NOT NULL,
    hash      text NOT NULL,
    PRIMARY KEY (chain_id, number)
);

-- Engines -----------------------------------------------------------------------------------------------------------

-- Engine processes with their last heartbeat; shown by /readyz and `doctor`.
CREATE TABLE workbench.engines (
    id          uuid PRIMARY KEY,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    next_due_at timestamptz                     -- when the next entry was due, at seen_at
);

-- What analysts see ---------------------------------------------------------------------------------------------------
-- The views run with the reader's own rights, so the row policies of the tables decide which rows are visible: one literal policy per
-- organization's login role, added at its first use.

ALTER TABLE workbench.contacts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.contact_changes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.onchain_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.chain_dead_logs ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.unknown_wallet_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.erased_wallets ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.message_outcomes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.test_pushes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.automations ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.entry_steps ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.moves ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.entry_moves ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segment_members ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segments ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segment_sizes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.broadcasts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.audience_parts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.event_notices ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.imports ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.topics ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.consents ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.identities ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.suppressions ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events;

CREATE VIEW analyst.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL;

-- Contacts that were merged into another one, with the values that they had then.
CREATE VIEW analyst.merged_contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, merged_into, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out
    FROM workbench.contacts
    WHERE merged_into IS NOT NULL AND erased_at IS NULL;

-- Events of merged contacts are found by the contact that they were merged into: a filter on `contact_id` is then one on an index.
CREATE VIEW analyst.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id, event_at FROM workbench.contact_changes
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, created_at, jsonb_object_keys(attributes) AS key
          FROM workbench.events WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, e.created_at, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

CREATE VIEW analyst.onchain_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, chain_id, contract, event, tx_hash, log_index, block_number, block_time, args, removed,
           signature, block_hash, created_at
    FROM workbench.onchain_events;

CREATE VIEW analyst.messages WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, automation_id, entry_id, node_id, channel, status, subject, body,
           created_at, sent_at, delivered_at
    FROM workbench.messages;

CREATE VIEW analyst.message_outcomes WITH (security_invoker = true, security_barrier = true) AS
    SELECT message_id, channel,
           CASE WHEN reason IN ('bounced', 'complained') THEN reason ELSE outcome END AS outcome,
           CASE WHEN reason NOT IN ('bounced', 'complained') THEN reason END AS reason, at
    FROM workbench.message_outcomes;

CREATE VIEW analyst.automations WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, name, active, published_version, created_at, updated_at, archived_at FROM workbench.automations;

CREATE VIEW analyst.automation_entries WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, automation_id, automation_version, contact_id, event_id, state, outcome, node_id, attempts, last_error,
           created_at, updated_at, merged_from
    FROM workbench.entries;

CREATE VIEW analyst.entry_steps WITH (security_invoker = true, security_barrier = true) AS
    SELECT entry_id, claim, step, attempt, node_id, kind, at, outcome, handle, detail ->> 'cause' AS cause
    FROM workbench.entry_steps;

-- Entries that continued on another version.
CREATE VIEW analyst.entry_moves WITH (security_invoker = true, security_barrier = true) AS
    SELECT e.entry_id, m.automation_id, e.from_version, e.from_node_id, m.version AS to_version, e.node_id AS to_node_id, e.moved_at,
           e.moved_back_at
    FROM workbench.entry_moves e
    JOIN workbench.moves m ON m.org_id = e.org_id AND m.id = e.move_id
    WHERE e.moved_at IS NOT NULL;

CREATE VIEW analyst.dead_letters WITH (security_invoker = true, security_barrier = true) AS
    SELECT e.id AS entry_id, e.automation_id, a.name AS automation, e.automation_version, e.contact_id, e.event_id, e.node_id,
           e.outcome AS cause, e.last_error, e.attempts, e.updated_at AS died_at
    FROM workbench.entries e
    JOIN workbench.automations a ON a.org_id = e.org_id AND a.id = e.automation_id
    WHERE e.state = 'dead';

CREATE VIEW analyst.segment_members WITH (security_invoker = true, security_barrier = true) AS
    SELECT segment, contact_id, entered_at FROM workbench.segment_members;

CREATE VIEW analyst.segments WITH (security_invoker = true, security_barrier = true) AS
    SELECT name, kind, size, refreshed_at, last_error, failing_since, created_at, updated_at
    FROM workbench.segments
    WHERE archived_at IS NULL;

CREATE VIEW analyst.segment_sizes WITH (security_invoker = true, security_barrier = true) AS
    SELECT s.name AS segment, z.at, z.size, z.entered, z.departed
    FROM workbench.segment_sizes z
    JOIN workbench.segments s ON s.org_id = z.org_id AND s.id = z.segment_id
    WHERE s.archived_at IS NULL;

CREATE VIEW analyst.broadcasts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, automation_id, nullif(segment, '') AS segment, scheduled, at, state, contacts, entered, departed, entries, created_at,
           started_at, ended_at
    FROM workbench.broadcasts;

CREATE VIEW analyst.rejected_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, event, field, reason, body, idempotency_key, received_at FROM workbench.event_notices
    WHERE outcome = 'rejected';

CREATE VIEW analyst.consents WITH (security_invoker = true, security_barrier = true) AS
    SELECT n.id, coalesce(c.merged_into, n.contact_id) AS contact_id, n.topic, n.channel, n.granted, n.source, n.text_sha256, n.at,
           CASE WHEN c.merged_into IS NOT NULL THEN n.contact_id END AS merged_from
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

-- Contacts with a suppressed address. The digests of the addresses are read, but not shown; while a secret is rotated, an address has two.
CREATE VIEW analyst.suppressions WITH (security_invoker = true, security_barrier = true) AS
    SELECT DISTINCT s.channel, i.contact_id, coalesce(s.cause, s.reason) AS cause, s.created_at
    FROM workbench.suppressions s
    JOIN workbench.identities i ON i.org_id = s.org_id AND i.kind = 2 AND i.value_digest = s.address_digest
    WHERE s.channel = 'email';

-- Events as of an earlier snapshot: those of the transactions that had ended then. Exact whatever the events' dates (an import dates its
-- events back). The snapshot is a setting of the reader's connection, which can only remove rows.
CREATE SCHEMA analyst_past;

CREATE FUNCTION workbench.past_end() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.past_end')::bigint;
CREATE FUNCTION workbench.past_open() RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.past_open')::bigint[];

CREATE VIEW analyst_past.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events
    WHERE stored_in < (SELECT workbench.past_end()) AND stored_in <> ALL ((SELECT workbench.past_open())::bigint[]);

-- For increments of segments: the rows of some contacts, a setting of the reader's connection, which can only remove rows. Only tables
-- with a row for each change of a contact that they show can be here. The function is declared IMMUTABLE, so that the planner knows the
-- contacts: it estimates their rows, reads them in the order of the table, and looks them up by hash where an index cannot. This is right
-- while each query is planned after the setting, as the cursors of the gateway are.
CREATE SCHEMA analyst_changed;

CREATE FUNCTION workbench.changed_contacts() RETURNS uuid[] LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.changed_contacts')::uuid[];

CREATE VIEW analyst_changed.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events
    WHERE contact_id = ANY (workbench.changed_contacts());

CREATE VIEW analyst_changed.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL AND id = ANY (workbench.changed_contacts());

CREATE VIEW analyst_changed.segment_members WITH (security_invoker = true, security_barrier = true) AS
    SELECT segment, contact_id, entered_at FROM workbench.segment_members
    WHERE contact_id = ANY (workbench.changed_contacts());

-- A direct login sees these views instead of the analyst's views of the same name. They have no emails, because without the gateway
-- nothing opens or masks them.
CREATE SCHEMA analyst_direct;

CREATE VIEW analyst_direct.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, external_id AS sent_external_id, merged_from
    FROM workbench.events;

CREATE VIEW analyst_direct.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL;

CREATE VIEW analyst_direct.merged_contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, merged_into, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out
    FROM workbench.contacts
    WHERE merged_into IS NOT NULL AND erased_at IS NULL;

CREATE VIEW analyst_direct.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id, event_at FROM workbench.contact_changes WHERE field <> 'email'
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, created_at, jsonb_object_keys(attributes) AS key
          FROM workbench.events WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id,
           f.created_at
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, e.created_at, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

-- Values that contacts had at a moment and have changed since, emails excepted, and the segments that they were in. The bodies of these
-- functions name tables, which the caller may read only through the columns and policies of its views.
CREATE FUNCTION workbench.earlier_values(moment timestamptz)
RETURNS TABLE (contact_id uuid, fields jsonb, attributes jsonb, changed_attributes text[], segments text[])
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (     -- of each field, the first change after the moment
        SELECT DISTINCT ON (k.contact_id, k.field) k.contact_id, k.field, k.old
        FROM (
            SELECT k.contact_id, k.changed_at, k.field, k.old FROM workbench.contact_changes k
            WHERE k.changed_at > moment AND k.field <> 'email'
            UNION ALL
            SELECT e.contact_id, e.changed_at, 'attributes.' || e.key, e.replaced -> e.key
            FROM (SELECT coalesce(merged_from, contact_id) AS contact_id, changed_at, replaced, attributes,
                         jsonb_object_keys(attributes) AS key
                  FROM workbench.events
                  WHERE changed_at > moment) AS e
            WHERE e.replaced -> e.key IS DISTINCT FROM e.attributes -> e.key
        ) AS k
        ORDER BY k.contact_id, k.field, k.changed_at
    ), before AS (
        SELECT l.contact_id,
               jsonb_object_agg(l.field, l.old) AS fields,
               coalesce(jsonb_object_agg(substr(l.field, 12), l.old) FILTER (WHERE l.field ^@ 'attributes.' AND l.old IS NOT NULL), '{}')
                   AS attributes,
               coalesce(array_agg(substr(l.field, 12)) FILTER (WHERE l.field ^@ 'attributes.'), '{}') AS changed_attributes
        FROM later l
        GROUP BY l.contact_id
    ), memberships AS (
        SELECT m.contact_id, m.segment
        FROM workbench.segment_members m
        WHERE m.entered_at <= moment
            AND NOT EXISTS (SELECT FROM later l WHERE l.contact_id = m.contact_id AND l.field = 'segments.' || m.segment)
        UNION ALL
        SELECT l.contact_id, substr(l.field, 10) FROM later l WHERE l.field ^@ 'segments.' AND l.old = 'true'
    ), segments AS (
        SELECT m.contact_id, array_agg(m.segment ORDER BY m.segment) AS names FROM memberships m GROUP BY m.contact_id
    )
    SELECT coalesce(b.contact_id, s.contact_id), b.fields, b.attributes, b.changed_attributes, s.names
    FROM before b
    FULL JOIN segments s ON s.contact_id = b.contact_id;
END;

-- Contacts as they were at a moment: those that existed, without contacts that were erased since.
CREATE FUNCTION analyst.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, email text, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[],
               opted_out text[], created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (
        SELECT DISTINCT ON (k.contact_id) k.contact_id, k.old
        FROM workbench.contact_changes k
        WHERE k.changed_at > moment AND k.field = 'email'
        ORDER BY k.contact_id, k.changed_at
    )
    SELECT c.id,
           CASE WHEN l.contact_id IS NULL THEN c.email ELSE l.old #>> '{}' END,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(b.segments, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN workbench.earlier_values(moment) b ON b.contact_id = c.id
    LEFT JOIN later l ON l.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;

CREATE FUNCTION analyst_direct.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[], opted_out text[],
               created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.id,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(b.segments, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN workbench.earlier_values(moment) b ON b.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;
