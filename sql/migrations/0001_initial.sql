-- Organizations, keys, contacts, events, automations, entries, messages.
--
-- Rules every table keeps (they let the same code run on one Postgres and on Citus):
-- org_id is first in every primary key, unique index and foreign key (except where there is no organization yet:
-- organizations.id and .name, api_keys.key_hash, by which a caller is found, and engines, clusters, channels, chains and their blocks,
-- which serve everybody);
-- no triggers; no now() in an update; moments and ids come from the caller, which reads one clock per unit of work.

CREATE SCHEMA workbench;
CREATE SCHEMA analyst;

-- Who -------------------------------------------------------------------------------------------------------------

CREATE TABLE workbench.organizations (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9-]{1,40}$'),
    created_at  timestamptz NOT NULL,
    origins     text[] NOT NULL DEFAULT '{}'     -- pages that may show in-app messages: https://app.example.com
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
    PRIMARY KEY (org_id, id)
);

-- Contacts and what identifies them ---------------------------------------------------------------------------------

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
    opted_out       text[] NOT NULL DEFAULT '{}' CHECK (opted_out <@ ARRAY['inapp', 'email', 'webhook']),
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    erased_at       timestamptz,                -- of somebody who is forgotten: the row only counts
    merged_into     uuid,                       -- the contact that this one turned out to be; it keeps what it was
    PRIMARY KEY (org_id, id)
) WITH (fillfactor = 80);
CREATE INDEX contacts_erased ON workbench.contacts (org_id, erased_at) WHERE erased_at IS NOT NULL;
CREATE INDEX contacts_merged ON workbench.contacts (org_id, merged_into) WHERE merged_into IS NOT NULL;

-- Which contact absorbed which, and what it gained; taken back, a row stays with the moment of that. While `due_at` is there, rows
-- of the absorbed contact are still to be looked for and moved (api/contacts/settling.py).
CREATE TABLE workbench.contact_merges (
    org_id       bigint NOT NULL,
    id           uuid NOT NULL,
    keep_id      uuid NOT NULL,
    absorbed_id  uuid NOT NULL,
    gained       jsonb NOT NULL,                -- what undoing takes back; emails sealed
    identities   jsonb NOT NULL,                -- [kind, digest] of what moved
    absorbed     jsonb NOT NULL,                -- the attributes the absorbed contact had
    created_at   timestamptz NOT NULL,
    undone_at    timestamptz,
    due_at       timestamptz,
    PRIMARY KEY (org_id, id)
);
CREATE UNIQUE INDEX contact_merges_live ON workbench.contact_merges (org_id, absorbed_id) WHERE undone_at IS NULL;

-- Erasures whose last look for what came in at the same time is still to come.
CREATE TABLE workbench.erasures (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL,
    due_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, contact_id)
);

-- Wallets of contacts that were erased: no log of before is about anybody, and none of later makes a contact of them again.
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
-- Not led by org_id: without statistics the planner would take it for the lookup by (org_id, kind, value_digest).
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
    resolved_by       uuid,                     -- the merge that made one contact of both
    PRIMARY KEY (org_id, id)
);
CREATE INDEX identity_conflicts_by_contact ON workbench.identity_conflicts (org_id, contact_id);
CREATE INDEX identity_conflicts_by_other ON workbench.identity_conflicts (org_id, other_contact_id);

-- Events ------------------------------------------------------------------------------------------------------------

-- One row for ever per (organization, idempotency key): the promise that an event is stored once.
CREATE TABLE workbench.idempotency_keys (
    org_id       bigint NOT NULL,
    key_digest   uuid NOT NULL,
    event_id     uuid NOT NULL,
    body_digest  uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (org_id, key_digest)
);

-- A key that came back with another body: accepted as a duplicate, kept for the debugger.
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
    wallet_address   text,                      -- the identifiers as this event carried them
    email            text,                      -- sealed
    external_id      text,
    merged_from      uuid,                      -- the contact it came to, when that was merged into another
    stored_in        bigint NOT NULL DEFAULT 0,   -- the number of the transaction that stored it, for `as_of`; see `clusters`
    PRIMARY KEY (org_id, id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX events_by_name ON workbench.events (org_id, event, created_at);
CREATE INDEX events_by_contact ON workbench.events (org_id, contact_id, created_at);

-- Months are attached ahead of time by the API and the importer (`add_event_month`); this one takes what lies outside.
CREATE TABLE workbench.events_other PARTITION OF workbench.events DEFAULT;

-- How often each event came, by hour and by day, counted once: of the last 31 days, up to `event_counting.counted_until`
-- (api/ingest/counting.py).
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

-- Up to where an organization's events are counted. Whoever stores events dated before `closed_until` notes them in `late_events`. While
-- none come, that is the year 9000, and nobody looks at the organization again until one is noted.
CREATE TABLE workbench.event_counting (
    org_id         bigint PRIMARY KEY,
    counted_until  timestamptz NOT NULL,
    closed_until   timestamptz NOT NULL CHECK (closed_until >= counted_until)
);

-- How many events came dated into what was closed already; added to the counts every few minutes.
CREATE TABLE workbench.late_events (
    org_id  bigint NOT NULL,
    source  uuid NOT NULL,              -- the import that notes them, and adds to its own notes; else one of this note alone
    event   text NOT NULL,
    at      timestamptz NOT NULL,       -- the beginning of the hour, or of the five minutes, that they are dated in
    count   bigint NOT NULL,
    PRIMARY KEY (org_id, source, event, at)
);

-- Transactions are numbered across Postgres clusters, so that a database that is dumped and restored elsewhere keeps their order:
-- a transaction's number is its own id plus what its cluster adds. `migrate` notes each cluster in which it finds the database.
CREATE TABLE workbench.clusters (
    first_number       bigint PRIMARY KEY,         -- above all numbers of the clusters before
    system_identifier  bigint NOT NULL,
    added              bigint NOT NULL CHECK (added >= 0),
    since              timestamptz NOT NULL
);

-- Names of notification channels that tell about organizations. A direct login may LISTEN to whatever it knows the name of.
CREATE TABLE workbench.channels (
    purpose  text PRIMARY KEY,
    channel  text NOT NULL
);
INSERT INTO workbench.channels VALUES ('inbox', 'inbox_' || replace(gen_random_uuid()::text, '-', ''));

-- Dry runs: kept apart for seven days, with idempotency keys of their own.
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

-- What leaves no event behind: refusals and duplicates, kept for seven days. Best effort (api/ingest/notices.py).
CREATE TABLE workbench.event_notices (
    org_id           bigint NOT NULL,
    id               uuid NOT NULL,              -- of the moment of writing, so that the live tail meets it
    outcome          text NOT NULL CHECK (outcome IN ('deduplicated', 'rejected')),
    event            text,                       -- as it was sent, where it could be read
    idempotency_key  text,
    field            text,
    reason           text,
    body             jsonb,                      -- keys, and the JSON types of their values
    received_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, id)
);
CREATE INDEX event_notices_by_key ON workbench.event_notices (org_id, idempotency_key);

-- Files of history that were imported, and how far: the first so many lines of a file are done. Written with what they brought.
CREATE TABLE workbench.imports (
    org_id       bigint NOT NULL,
    digest       uuid NOT NULL,                 -- of the file's bytes, and of how they are read
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
    stint              integer NOT NULL DEFAULT 1,      -- grows whenever it is switched on again
    paused_at          timestamptz,                     -- it stands still since then; only what is active can
    live_since         timestamptz,                     -- logs of blocks before do not start it; null: those before it was made
    earlier_confirmations  integer,                     -- a version before wanted so many: logs may wait for them until a follower looked
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
    awaits         text[] NOT NULL DEFAULT '{}',    -- the events that its runs can wait for, or have as their goal
    PRIMARY KEY (org_id, automation_id, version),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);

-- Raised by every change of an organization's automations; ingest reads it in its own transaction, so cached
-- triggers are never stale.
CREATE TABLE workbench.automation_epochs (
    org_id  bigint PRIMARY KEY,
    epoch   bigint NOT NULL
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
    stint               integer NOT NULL DEFAULT 1,     -- of the automation when the event matched: an entry of an earlier one rests
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
    awaits              text[],                         -- the events that wake it before its time, while it waits
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    merged_from         uuid,                           -- like that of an event
    request_id          text,                           -- of the request that brought the event, for logs
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, automation_id, event_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX entries_ready ON workbench.entries (org_id, due_at) WHERE state IN ('pending', 'waiting');
CREATE INDEX entries_retrying ON workbench.entries (org_id, due_at) WHERE state = 'retrying';
CREATE INDEX entries_running ON workbench.entries (org_id, lease_until) WHERE state = 'running';
CREATE INDEX entries_paused ON workbench.entries (org_id, automation_id, id) WHERE state = 'paused';
CREATE INDEX entries_dead ON workbench.entries (org_id, automation_id, id) WHERE state = 'dead';
CREATE INDEX entries_by_automation ON workbench.entries (org_id, automation_id, id);
CREATE INDEX entries_by_contact ON workbench.entries (org_id, contact_id, automation_id, created_at);
CREATE INDEX entries_awaiting ON workbench.entries (org_id, contact_id, id) WHERE state = 'waiting' AND awaits IS NOT NULL;

-- Every move of an entry between states; the pairs are those of api/language/run.py.
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
    claim     bigint NOT NULL,                  -- the lease token under which it was taken: grows over the entry's life
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

-- Messages: a row before each effect, one id for ever per (entry, node, visit) -----------------------------------------

CREATE TABLE workbench.messages (
    org_id          bigint NOT NULL,
    id              uuid NOT NULL,
    contact_id      uuid NOT NULL,
    automation_id   uuid NOT NULL,
    entry_id        uuid NOT NULL,
    node_id         text NOT NULL,
    visit           integer NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('inapp', 'email', 'webhook')),
    status          text NOT NULL CHECK (status IN
        ('queued', 'sending', 'sent', 'delivered', 'failed', 'skipped', 'unknown')),
    wallet_address  text,
    recipient       text,                       -- of an email the sealed address, of a webhook the url
    html            boolean NOT NULL DEFAULT false,
    lease_token     bigint,                     -- of the claim that sends it, or did
    in_doubt        boolean NOT NULL DEFAULT false,     -- an attempt of it may have arrived, whatever became of later ones
    subject         text,
    body            text,
    extra           jsonb,
    created_at      timestamptz NOT NULL,
    sent_at         timestamptz,
    delivered_at    timestamptz,
    PRIMARY KEY (org_id, id),
    UNIQUE (org_id, entry_id, node_id, visit)
);
CREATE INDEX messages_inbox ON workbench.messages (org_id, wallet_address, created_at)
    WHERE channel = 'inapp' AND delivered_at IS NULL;
CREATE INDEX messages_by_contact ON workbench.messages (org_id, contact_id, created_at);

-- What became of messages, one row for every outcome, written with the status it leads to. `retrying`: a try failed, and another
-- will follow. The rows with `sent` are the meter. Led by time: a month is one range, and new rows lie at its end.
CREATE TABLE workbench.message_outcomes (
    org_id      bigint NOT NULL,
    at          timestamptz NOT NULL,
    message_id  uuid NOT NULL,
    outcome     text NOT NULL CHECK (outcome IN ('sent', 'delivered', 'retrying', 'failed', 'skipped', 'unknown')),
    channel     text NOT NULL CHECK (channel IN ('inapp', 'email', 'webhook')),
    reason      text,                           -- one word, never a value of the contact
    PRIMARY KEY (org_id, at, message_id, outcome) INCLUDE (channel)
);

-- Delivery ----------------------------------------------------------------------------------------------------------

-- Addresses that get no more messages of a channel; kept as a blind index, so that erasing a contact need not lift it.
CREATE TABLE workbench.suppressions (
    org_id          bigint NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('email')),
    address_digest  uuid NOT NULL,
    reason          text NOT NULL CHECK (reason IN ('unsubscribed', 'opted_out')),
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, channel, address_digest)
);

-- What webhooks are signed with, sealed. After a roll the previous secret signs, too, until its moment.
CREATE TABLE workbench.webhook_secrets (
    org_id          bigint PRIMARY KEY,
    secret          bytea NOT NULL,
    previous        bytea,
    previous_until  timestamptz,
    created_at      timestamptz NOT NULL,
    CHECK ((previous IS NULL) = (previous_until IS NULL))
);

-- Webhook addresses that said 410: nothing is sent there until somebody opens them again.
CREATE TABLE workbench.closed_endpoints (
    org_id      bigint NOT NULL,
    url_digest  uuid NOT NULL,                  -- blind index: an address may carry values of contacts
    host        text NOT NULL,
    closed_at   timestamptz NOT NULL,
    PRIMARY KEY (org_id, url_digest)
);

-- What wallets were asked to sign and have not yet: a row is good for minutes, and is deleted by the sign-in that uses it, or by
-- one that comes later, or within a day.
CREATE TABLE workbench.inapp_challenges (
    org_id          bigint NOT NULL,
    nonce           text NOT NULL,
    wallet_address  text NOT NULL,
    key_id          uuid NOT NULL,              -- the publishable key that asked; it ends the session, too
    origin          text NOT NULL,
    chain_id        bigint NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (org_id, nonce)
);
CREATE INDEX inapp_challenges_by_end ON workbench.inapp_challenges (org_id, expires_at);

-- In-app messages that somebody sent to a wallet of their own to try an automation: kept apart from messages, so that nothing counts
-- them; deleted when they are acknowledged, or after a day. `contact_id`: of whom the texts may speak.
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

-- A name for contacts: those that a query finds, asked again and again, or those of a frame, frozen.
CREATE TABLE workbench.segments (
    org_id         bigint NOT NULL REFERENCES workbench.organizations (id),
    id             uuid NOT NULL,
    name           text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    kind           text NOT NULL CHECK (kind IN ('query', 'audience')),
    sql            text,                        -- as it was written
    params         jsonb,                       -- its values, addresses sealed
    every_seconds  integer CHECK (every_seconds BETWEEN 60 AND 604800),
    provenance     jsonb NOT NULL DEFAULT '{}', -- of an audience: what its frame came from, and how many rows were used
    size           integer NOT NULL,            -- when it was last refreshed
    refreshed_at   timestamptz,                 -- null: an audience of which more is to come; its members are those of before
    last_error     text,                        -- why the last try failed; the members stay those of before
    failing_since  timestamptz,
    failures       integer NOT NULL DEFAULT 0,  -- since it last succeeded
    due_at         timestamptz,
    attempted_at   timestamptz,
    lease_token    bigint NOT NULL DEFAULT 0,   -- grows with every claim; who holds an older one changes nothing
    lease_until    timestamptz,
    revision       integer NOT NULL,
    created_at     timestamptz NOT NULL,
    created_by     uuid NOT NULL,
    updated_at     timestamptz NOT NULL,
    updated_by     uuid NOT NULL,
    archived_at    timestamptz,
    PRIMARY KEY (org_id, id),
    CHECK ((kind = 'query') = (num_nonnulls(sql, every_seconds) = 2))
);
CREATE UNIQUE INDEX segments_by_name ON workbench.segments (org_id, name) WHERE archived_at IS NULL;
CREATE INDEX segments_due ON workbench.segments (org_id, due_at) WHERE due_at IS NOT NULL;

-- How large a segment was: a row for each refresh that changed something.
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

-- Contacts of a frame that comes in parts, until the last one makes them the audience.
CREATE TABLE workbench.audience_parts (
    org_id      bigint NOT NULL,
    segment_id  uuid NOT NULL,
    contact_id  uuid NOT NULL,
    PRIMARY KEY (org_id, segment_id, contact_id),
    FOREIGN KEY (org_id, segment_id) REFERENCES workbench.segments (org_id, id)
);

-- What happened on chains: a row for every log that somebody of the organization follows. A log whose block was dropped is
-- `removed`; when it comes again, in another block or at another place, the row, and the entries it started, come back to life.
CREATE TABLE workbench.onchain_events (
    org_id        bigint NOT NULL,
    id            uuid NOT NULL,
    contact_id    uuid,                         -- of the wallet that the log is about, when it is known
    chain_id      bigint NOT NULL,
    contract      text NOT NULL,                -- addresses and hashes in lower case
    event         text NOT NULL,
    signature     text NOT NULL,                -- as it is hashed: Transfer(address,address,uint256)
    tx_hash       text NOT NULL,
    log_index     integer NOT NULL,             -- in the block it is in now, or was in last
    digest        uuid NOT NULL,                -- of contract, topics and data: what makes it this log of its transaction
    block_number  bigint NOT NULL,
    block_hash    text NOT NULL,
    block_time    timestamptz NOT NULL,
    args          jsonb NOT NULL DEFAULT '{}',  -- empty where the log does not hold what the signature says
    removed       boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL,         -- when it was first seen
    merged_from   uuid,                         -- like that of an event
    PRIMARY KEY (org_id, id)
);
CREATE UNIQUE INDEX onchain_events_in_chain ON workbench.onchain_events (org_id, chain_id, tx_hash, log_index) WHERE NOT removed;
CREATE INDEX onchain_events_dropped ON workbench.onchain_events (org_id, chain_id, tx_hash, log_index) WHERE removed;
CREATE INDEX onchain_events_by_block ON workbench.onchain_events (org_id, block_number, chain_id);
CREATE INDEX onchain_events_by_contract ON workbench.onchain_events (org_id, contract, id);
CREATE INDEX onchain_events_by_contact ON workbench.onchain_events (org_id, contact_id, created_at);

-- Contract events that are kept though no automation starts from them.
CREATE TABLE workbench.chain_watches (
    org_id      bigint NOT NULL REFERENCES workbench.organizations (id),
    chain_id    bigint NOT NULL,
    contract    text NOT NULL,
    signature   text NOT NULL,
    wallet_arg  text,                           -- the parameter by whose wallet a contact is found
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (org_id, chain_id, contract, signature)
);

-- Logs that the database refuses to store, each with what it broke: nothing else waits for them. For the operator.
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

-- Logs that passed the filters of automations but are about nobody known, by the hour in which they came: `created` made a contact, the
-- others started nothing. Kept for seven days.
CREATE TABLE workbench.stranger_counts (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    hour           timestamptz NOT NULL,
    what           text NOT NULL CHECK (what IN ('created', 'unknown', 'limit', 'zero_address', 'erased')),
    count          bigint NOT NULL,
    PRIMARY KEY (org_id, automation_id, hour, what)
);

-- How far each chain has been read, and by whom: the token grows with every follower, and a write with an older one finds no row.
CREATE TABLE workbench.chains (
    chain_id      bigint PRIMARY KEY,
    token         bigint NOT NULL,
    lease_until   timestamptz NOT NULL,
    block_number  bigint,                       -- all logs up to here are stored; none yet: reading begins at the head
    head          bigint,
    read_at       timestamptz,
    trouble       text,                         -- what hinders the follower now
    dropping_above  bigint                      -- a reorganization: logs of blocks above this one are to be taken back first
);

-- Blocks that were read, by whose hashes a reorganization is noticed: the newest ones, and the first of the chain.
CREATE TABLE workbench.chain_blocks (
    chain_id  bigint NOT NULL,
    number    bigint NOT NULL,
    hash      text NOT NULL,
    PRIMARY KEY (chain_id, number)
);

-- Which engine processes are alive; shown by /readyz and `doctor`.
CREATE TABLE workbench.engines (
    id          uuid PRIMARY KEY,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    next_due_at timestamptz                     -- when the next entry was due, then
);

-- What analysts see ---------------------------------------------------------------------------------------------------
-- The views run with the reader's own rights, so the row policies of the tables (one literal policy per organization's
-- login role, added on its first use) decide what is seen.

ALTER TABLE workbench.contacts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.onchain_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.chain_dead_logs ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.stranger_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.erased_wallets ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.message_outcomes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.test_pushes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.automations ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segment_members ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segments ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.segment_sizes ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.audience_parts ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.event_notices ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.imports ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id
    FROM workbench.events;

CREATE VIEW analyst.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL;

CREATE VIEW analyst.onchain_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, chain_id, contract, event, tx_hash, log_index, block_number, block_time, args, removed,
           signature, block_hash, created_at
    FROM workbench.onchain_events;

CREATE VIEW analyst.messages WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, automation_id, entry_id, node_id, channel, status, subject, body,
           created_at, sent_at, delivered_at
    FROM workbench.messages;

CREATE VIEW analyst.message_outcomes WITH (security_invoker = true, security_barrier = true) AS
    SELECT message_id, channel, outcome, reason, at FROM workbench.message_outcomes;

CREATE VIEW analyst.automations WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, name, active, published_version, created_at, updated_at, archived_at FROM workbench.automations;

CREATE VIEW analyst.automation_entries WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, automation_id, automation_version, contact_id, event_id, state, outcome, node_id, attempts, last_error,
           created_at, updated_at
    FROM workbench.entries;

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

CREATE VIEW analyst.rejected_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, event, field, reason, body, idempotency_key, received_at FROM workbench.event_notices
    WHERE outcome = 'rejected';

-- What analysts see of the past: the events of the transactions that a query of then had seen the end of. Exact whatever their
-- moments are (an import dates its events back). Which those are is a setting of the reader's connection; it only ever takes rows away.
CREATE SCHEMA analyst_past;

CREATE FUNCTION workbench.past_end() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.past_end')::bigint;
CREATE FUNCTION workbench.past_open() RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN current_setting('workbench.past_open')::bigint[];

CREATE VIEW analyst_past.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id
    FROM workbench.events
    WHERE stored_in < (SELECT workbench.past_end()) AND stored_in <> ALL ((SELECT workbench.past_open())::bigint[]);

-- What a direct login sees instead of the analyst's view of the same name: no addresses, since nobody opens or masks them on their way.
CREATE SCHEMA analyst_direct;

CREATE VIEW analyst_direct.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, external_id AS sent_external_id
    FROM workbench.events;

CREATE VIEW analyst_direct.contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out, erased_at
    FROM workbench.contacts
    WHERE merged_into IS NULL;
