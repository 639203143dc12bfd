-- The engine: find due entries, claim them, load what decisions need, record the decisions.
--
-- The keys of a batch carry the organization in a column. With a constant in the join, a plan made while a table was
-- empty would scan all rows of the organization for every batch. Where each row is looked up on its own (CROSS JOIN
-- LATERAL), the constant does no harm. `state || ''` and `ORDER BY` in such a lookup keep the planner from every
-- index but the one by key.

-- Finding and claiming ---------------------------------------------------------------------------------------------

-- find_due_work --
-- Organizations with entries that are due now: ready, retrying, or with an expired lease.
SELECT org_id, ready, retrying, expired FROM (SELECT o.org_id,
    (SELECT e.due_at FROM entries e WHERE e.org_id = o.org_id AND e.state IN ('pending', 'waiting') AND e.due_at <= :now ::timestamptz
     ORDER BY e.due_at LIMIT 1) IS NOT NULL AS ready,
    (SELECT e.due_at FROM entries e WHERE e.org_id = o.org_id AND e.state = 'retrying' AND e.due_at <= :now ::timestamptz
     ORDER BY e.due_at LIMIT 1) IS NOT NULL AS retrying,
    (SELECT e.due_at FROM entries e WHERE e.org_id = o.org_id AND e.state = 'running' AND e.lease_until <= :now ::timestamptz
     ORDER BY e.lease_until LIMIT 1) IS NOT NULL AS expired
FROM automation_epochs o OFFSET 0) AS due
WHERE ready OR retrying OR expired;

-- next_due --
-- When the next entry of any organization is due; null if none waits.
SELECT min(least(
    (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.org_id AND e.state IN ('pending', 'waiting')),
    (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.org_id AND e.state = 'retrying'),
    (SELECT min(e.lease_until) FROM entries e WHERE e.org_id = o.org_id AND e.state = 'running')))
FROM automation_epochs o;

-- lock_due_entries --
-- The next due entries of one organization that no other claim has read, with the turns of their contacts locked until
-- commit (as `hold_turns` does); contacts that another transaction has locked are left out. A claim looks at the
-- entries of a contact only under this lock, so no two claims take entries of one contact at once. Each lane has a
-- partial index; only the part for the given lane runs.
WITH ready AS (
    SELECT id, contact_id FROM entries
    WHERE :lane ::text = 'ready' AND org_id = :org_id ::bigint AND state IN ('pending', 'waiting') AND due_at <= :now ::timestamptz
    ORDER BY due_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
), retrying AS (
    SELECT id, contact_id FROM entries
    WHERE :lane ::text = 'retrying' AND org_id = :org_id ::bigint AND state = 'retrying' AND due_at <= :now ::timestamptz
    ORDER BY due_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
SELECT unnest(ids)::text AS entry_id, contact_id
FROM (
    SELECT contact_id, array_agg(id) AS ids FROM (SELECT * FROM ready UNION ALL SELECT * FROM retrying) AS d
    GROUP BY contact_id OFFSET 0
) AS due
WHERE pg_try_advisory_xact_lock(-4611686018427387905 - (('x' || translate(substr(contact_id::text, 20), '-', ''))::bit(64)::bigint & 4611686018427387903));

-- claim_entries --
-- Of these due entries, claim the first one of each contact, unless an entry of the contact is running: it runs, with
-- one more attempt and a lease that other workers respect. The others are put back until their turn: `turn_at` is the
-- moment at which such an entry was due. Their `due_at`, until which they are not read again, is only reached if
-- `release_turns` does not come. The entries are looked up by key: a second scan of the index would pass the dead
-- rows at its beginning again.
WITH due AS MATERIALIZED (
    SELECT e.* FROM unnest(:entry_id ::uuid[], :contact_id ::uuid[]) AS k (id, contact_id) CROSS JOIN LATERAL (
        SELECT e.org_id, e.id, e.contact_id, e.event_id, e.automation_id, e.state, coalesce(e.turn_at, e.due_at) AS turn_at FROM entries e
        WHERE e.org_id = :org_id ::bigint AND e.id = k.id AND e.contact_id IS NOT DISTINCT FROM k.contact_id    -- not by contact
            AND e.state || '' IN ('pending', 'waiting', 'retrying') AND e.due_at <= :now ::timestamptz
        ORDER BY e.id LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS e
), first AS MATERIALIZED (
    SELECT DISTINCT ON (contact_id) * FROM due ORDER BY contact_id, turn_at, event_id, automation_id    -- as a backtest
), head AS MATERIALIZED (
    -- The first of those that were read, unless another entry of the contact is running, or comes before it.
    SELECT f.org_id, f.contact_id, f.id AS first_id, coalesce(o.id, f.id) AS id, coalesce(o.state, f.state) AS state
    FROM first f LEFT JOIN LATERAL (
        SELECT e.id, e.state, coalesce(e.turn_at, e.due_at) AS turn_at, e.event_id, e.automation_id FROM entries e
        WHERE e.org_id = f.org_id AND e.contact_id = f.contact_id    -- as the index entries_turns, word for word
            AND (e.state IN ('running', 'retrying') OR (e.state IN ('pending', 'waiting') AND e.turn_at IS NOT NULL))
        ORDER BY e.state <> 'running', coalesce(e.turn_at, e.due_at), e.event_id, e.automation_id LIMIT 1
    ) AS o ON o.state = 'running' OR (o.turn_at, o.event_id, o.automation_id) < (f.turn_at, f.event_id, f.automation_id)
), turn AS MATERIALIZED (
    SELECT org_id, id, state FROM head WHERE id = first_id
    UNION ALL
    SELECT e.* FROM head h CROSS JOIN LATERAL (
        SELECT e.org_id, e.id, e.state FROM entries e
        WHERE e.org_id = h.org_id AND e.id = h.id AND e.state || '' IN ('pending', 'waiting', 'retrying')
        ORDER BY e.id LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS e
    WHERE h.id <> h.first_id
), claimed AS (
    UPDATE entries e
    SET state = 'running', attempts = e.attempts + 1, lease_token = e.lease_token + 1,
        lease_until = :lease_until ::timestamptz, due_at = coalesce(e.turn_at, e.due_at), turn_at = NULL,
        updated_at = :now ::timestamptz
    FROM turn
    WHERE e.org_id = turn.org_id AND e.id = turn.id
    RETURNING e.id, e.automation_id, e.automation_version, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.step,
              e.attempts, e.lease_token, e.lease_until, e.due_at, e.since, e.since_id, e.activation, e.request_id, e.outcome,
              turn.state AS came_from
), later AS MATERIALIZED (
    -- If another transaction has the first entry locked, which takes moments, no claim will make those behind it due.
    SELECT d.org_id, d.id, CASE WHEN h.state = 'running' OR h.id IN (SELECT id FROM turn) THEN :put_back_until ::timestamptz
                                ELSE :now ::timestamptz + interval '100 milliseconds' END AS until
    FROM due d JOIN head h USING (contact_id)
    WHERE d.id <> h.id
), put_back AS (
    UPDATE entries e SET turn_at = coalesce(e.turn_at, e.due_at), due_at = later.until
    FROM later
    WHERE e.org_id = later.org_id AND e.id = later.id
    RETURNING true
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)
    SELECT :org_id ::bigint, id, came_from, 'running', :now ::timestamptz FROM claimed
    RETURNING true
)
SELECT id AS entry_id, automation_id, event_id, event_created_at, contact_id, node_id, automation_version AS version, step,
       attempts AS attempt, lease_token AS token, lease_until, due_at, since, since_id, activation, request_id, outcome AS cancelled_outcome,
       came_from = 'pending' AND node_id IS NOT NULL AS resumed
FROM claimed;

-- release_turns --
-- Make the next entry of each of these contacts due that was put back until its turn, and notify the engines; the
-- locks of the contacts' turns are held. One row if there are any.
WITH k AS MATERIALIZED (
    SELECT id FROM unnest(:contact_ids ::uuid[]) AS id
), next AS MATERIALIZED (
    SELECT e.* FROM k CROSS JOIN LATERAL (
        SELECT e.org_id, e.id FROM entries e
        WHERE e.org_id = :org_id ::bigint AND e.contact_id = k.id AND e.turn_at IS NOT NULL
            AND e.state <> 'running'    -- from here as the index entries_turns, word for word
            AND (e.state IN ('running', 'retrying') OR (e.state IN ('pending', 'waiting') AND e.turn_at IS NOT NULL))
        ORDER BY e.state <> 'running', coalesce(e.turn_at, e.due_at), e.event_id, e.automation_id LIMIT 1
        FOR UPDATE SKIP LOCKED    -- not one that is being cancelled, which would release nobody
    ) AS e
), released AS (
    UPDATE entries e SET due_at = e.turn_at, turn_at = NULL FROM next WHERE e.org_id = next.org_id AND e.id = next.id
    RETURNING e.id
)
SELECT pg_notify('workbench_entries', '') IS NOT NULL WHERE EXISTS (SELECT FROM released);

-- rescue_entries --
-- Release entries with an expired lease; they are retried at once, at the moment at which they were due.
WITH expired AS (
    SELECT org_id, id FROM entries
    WHERE org_id = :org_id ::bigint AND state = 'running' AND lease_until <= :now ::timestamptz
    ORDER BY lease_until LIMIT :limit
    FOR UPDATE SKIP LOCKED
), rescued AS (
    UPDATE entries e
    SET state = 'retrying', lease_token = e.lease_token + 1, lease_until = NULL,
        updated_at = :now ::timestamptz, last_error = 'lease_expired: the worker stopped in the middle'
    FROM expired
    WHERE e.org_id = expired.org_id AND e.id = expired.id
    RETURNING e.id
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, 'running', 'retrying', :now ::timestamptz, 'lease_expired' FROM rescued
    RETURNING true
)
SELECT count(*) FROM rescued;

-- renew_leases --
-- Extend leases of entries that take long; entries with another token are not returned.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:entry_id ::uuid[], :token ::bigint[]) AS k (id, token)
)
UPDATE entries e SET lease_until = :lease_until ::timestamptz
FROM k WHERE e.org_id = k.org_id AND e.id = k.id AND e.lease_token = k.token
RETURNING e.id::text;

-- Loading what decisions need --------------------------------------------------------------------------------------

-- load_events --
-- The events of claimed entries.
SELECT v.id, v.event, v.occurred_at, v.created_at, v.payload, v.idempotency_key, v.wallet_address, v.email, v.external_id
FROM unnest(:event_id ::uuid[], :event_created_at ::timestamptz[]) AS k (id, created_at)
CROSS JOIN LATERAL (
    SELECT * FROM events e
    WHERE e.org_id = :org_id ::bigint AND e.id >= k.id AND e.id <= k.id AND e.created_at = k.created_at
    ORDER BY e.id LIMIT 1    -- a range and an order that only the primary key has: in a new month all indexes look alike
) AS v;

-- load_starting_events --
-- The logs and starts that started claimed entries, by entry, with the wallet in the parameter that the entry's version
-- names, and that version's signature.
SELECT k.id AS entry_id, o.id, o.contract_event AS event, o.occurred_at, o.created_at, o.log AS payload, o.idempotency_key,
       o.log -> 'args' ->> (v.trigger_spec ->> 'walletArg') AS wallet_address, NULL AS email, NULL AS external_id,
       o.source, v.trigger_spec ->> 'signature' AS signature
FROM unnest(:entry_id ::uuid[], :event_id ::uuid[], :automation_id ::uuid[], :version ::integer[])
    AS k (id, event_id, automation_id, version)
CROSS JOIN LATERAL (
    SELECT * FROM starting_events WHERE org_id = :org_id ::bigint AND id >= k.event_id AND id <= k.event_id ORDER BY id LIMIT 1    -- as above
) AS o
LEFT JOIN LATERAL (
    SELECT trigger_spec FROM automation_versions
    WHERE org_id = :org_id ::bigint AND automation_id = k.automation_id AND version = k.version LIMIT 1
) AS v ON true;

-- load_contacts --
-- Contacts with their segments; erased contacts are left out.
SELECT c.id, c.wallet_address, c.wallet_raw, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment || '') AS segments,
       c.opted_out, c.created_at, c.updated_at
FROM unnest(:ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT * FROM contacts WHERE org_id = :org_id ::bigint AND id = k.id AND erased_at IS NULL LIMIT 1    -- key by key
) AS c;

-- find_unsubscribed --
-- Which of these contacts unsubscribed one of their addresses.
WITH k AS MATERIALIZED (SELECT :org_id ::bigint AS org_id, id FROM unnest(:ids ::uuid[]) AS id)
SELECT k.id::text
FROM k JOIN identities i ON i.contact_id = k.id AND i.org_id = k.org_id AND i.kind = 2
CROSS JOIN LATERAL (
    SELECT FROM suppressions s
    WHERE s.org_id = i.org_id AND s.channel = 'email' AND s.address_digest = i.value_digest
    ORDER BY s.address_digest    -- one by one, even if the statistics say that the table is empty
) AS s;

-- find_declined_topics --
-- Which of these topics each of these contacts declined.
SELECT k.id::text, d.topic
FROM unnest(:ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT topic FROM declined_topics
    WHERE org_id = :org_id ::bigint AND contact_id = k.id AND topic = ANY (:topics ::text[])
    ORDER BY topic    -- key by key
) AS d;

-- read_automation_statuses --
-- The activation of automations, the outcome of their entries if they stopped, and whether they are paused.
SELECT a.id::text, a.activation,
       CASE WHEN a.archived_at IS NOT NULL THEN 'automation_archived' WHEN NOT a.active THEN 'automation_inactive' END AS stopped,
       a.paused_at IS NOT NULL AS paused
FROM automations a
WHERE a.org_id = :org_id AND a.id = ANY(:ids ::uuid[]);

-- load_graph --
-- The graph of a published version, which never changes.
SELECT graph FROM automation_versions
WHERE org_id = :org_id AND automation_id = :automation_id AND version = :version;

-- read_other_entries --
-- For each entry: when the contact last entered the automation with another entry, and whether
-- one of those entries has not ended. Another entry counts once it has taken a step or died; while it is undecided, it
-- counts if its event came before that of this one. Even if two entries are committed in another order than they were
-- created, only one of them is the first: the later decision sees the step of the earlier one. Only the newest entries
-- count: while one of them has not ended, a policy that looks at it lets no other take a step.
SELECT k.id::text, entered.at, entered.running
FROM unnest(:entry_id ::uuid[], :automation_id ::uuid[], :contact_id ::uuid[], :event_id ::uuid[], :event_created_at ::timestamptz[])
    AS k (id, automation_id, contact_id, event_id, created_at)
CROSS JOIN LATERAL (
    SELECT max(counted.created_at) AS at, bool_or(counted.state IN ('pending', 'running', 'waiting', 'retrying', 'paused')) AS running
    FROM (
        SELECT e.created_at, e.state FROM entries e
        WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id AND e.id <> k.id
            AND (e.step > 0 OR e.state = 'dead' OR (e.state IN ('pending', 'running', 'waiting', 'retrying', 'paused')
                                                    AND (e.created_at, e.event_id) < (k.created_at, k.event_id)))
        ORDER BY e.created_at DESC LIMIT :limit    -- the order of the index on contacts
    ) AS counted
) AS entered
WHERE entered.at IS NOT NULL;

-- count_recent_entries --
-- For each entry: how many other entries the contact had in the automation in the time before it, up to a limit.
SELECT k.id::text, (
    SELECT count(*) FROM (
        SELECT FROM entries e
        WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id
            AND e.created_at > k.created_at - :within ::interval AND (e.joined_entry IS NULL OR e.step > 0)
            AND (e.created_at, e.event_id) < (k.created_at, k.event_id)
        ORDER BY e.created_at DESC LIMIT :limit    -- the order of the index on contacts
    ) AS recent)
FROM unnest(:entry_id ::uuid[], :automation_id ::uuid[], :contact_id ::uuid[], :event_id ::uuid[], :event_created_at ::timestamptz[])
    AS k (id, automation_id, contact_id, event_id, created_at);

-- find_collecting --
-- For each entry: the other entries of its contact and automation that wait and collect events, the oldest first, with
-- the event that started each and the number of those that joined it.
SELECT k.id::text, c.id::text AS entry_id, c.node_id, c.event, c.payload, c.event_created_at AS at, c.event_id::text, c.due_at AS until, (
    SELECT count(*) FROM (
        SELECT FROM entries j WHERE j.org_id = :org_id AND j.joined_entry = c.id LIMIT :limit
    ) AS j) AS joined
FROM unnest(:entry_id ::uuid[], :automation_id ::uuid[], :contact_id ::uuid[]) AS k (id, automation_id, contact_id)
CROSS JOIN LATERAL (
    SELECT e.id, e.node_id, e.event_id, e.event_created_at, e.due_at, v.event, v.payload
    FROM entries e
    CROSS JOIN LATERAL (
        SELECT v.event, v.payload FROM events v
        WHERE v.org_id = :org_id ::bigint AND v.id >= e.event_id AND v.id <= e.event_id AND v.created_at = e.event_created_at
        ORDER BY v.id LIMIT 1    -- as in load_events
    ) AS v
    WHERE e.org_id = :org_id ::bigint AND e.contact_id = k.contact_id AND e.state = 'waiting' AND e.awaits IS NOT NULL
        AND e.automation_id = k.automation_id AND e.id <> k.id AND '+' || e.id = ANY(e.awaits) AND e.outcome IS NULL
        AND e.activation = (SELECT a.activation FROM automations a WHERE a.org_id = :org_id ::bigint AND a.id = k.automation_id)
    ORDER BY e.id    -- the order of the index on waiting entries, and of no other index
) AS c
ORDER BY c.event_created_at, c.event_id;

-- count_joined --
-- How many events joined these entries; entries without any are left out.
SELECT k.id::text, j.events
FROM unnest(:ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (SELECT count(*) AS events FROM entries WHERE org_id = :org_id ::bigint AND joined_entry = k.id) AS j
WHERE j.events > 0;

-- read_joined_events --
-- For each entry: the events that joined it, in order, without those of contacts that have been erased since they were separated again.
SELECT k.id::text, v.id, v.event, v.occurred_at, v.created_at, v.payload, v.idempotency_key, v.wallet_address, v.email, v.external_id
FROM unnest(:entry_id ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT j.event_id, j.event_created_at FROM entries j
    WHERE j.org_id = :org_id ::bigint AND j.joined_entry = k.id
) AS j
CROSS JOIN LATERAL (
    SELECT * FROM events e
    WHERE e.org_id = :org_id ::bigint AND e.id >= j.event_id AND e.id <= j.event_id AND e.created_at = j.event_created_at
    ORDER BY e.id LIMIT 1    -- as in load_events
) AS v
WHERE v.idempotency_key <> ''    -- as erase_events leaves none
ORDER BY v.created_at, v.id;

-- read_message_times --
-- For each entry: when messages of any automation were sent to the contact since a moment, on channels that count
-- towards a frequency cap, except the message that the entry's own node is trying to send.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:entry_id ::uuid[], :contact_id ::uuid[], :node_id ::text[], :sent_after ::timestamptz[]) AS k (id, contact_id, node_id, since)
)
SELECT k.id::text, m.created_at
FROM k JOIN messages m ON m.org_id = k.org_id AND m.contact_id = k.contact_id AND m.created_at > k.since
WHERE m.channel = ANY (:channels ::text[]) AND m.status NOT IN ('failed', 'skipped')
    AND (m.entry_id <> k.id OR m.node_id IS DISTINCT FROM k.node_id)
ORDER BY m.created_at;

-- read_later_events --
-- For each entry: the newest events of some names that its contact sent after the event that started the entry, after
-- a moment (or at that moment, after the event `after_ids`), and up to another moment; and, if a name is a contract and
-- an event, the newest logs about the contact with that contract and event.
SELECT k.id, a.id, a.event, a.occurred_at, a.created_at, a.payload, a.idempotency_key, a.wallet_address, a.email, a.external_id
FROM unnest(:entry_id ::uuid[], :contact_id ::uuid[], :event_id ::uuid[], :event_created_at ::timestamptz[], :received_after ::timestamptz[],
            :after_ids ::uuid[], :received_until ::timestamptz[], :names ::text[]) AS k (id, contact_id, event_id, created_at, since, since_id, until, names)
CROSS JOIN LATERAL (
    (SELECT v.id, v.event, v.occurred_at, v.created_at, v.payload, v.idempotency_key, v.wallet_address, v.email, v.external_id
     FROM events v
     WHERE v.org_id = :org_id AND v.contact_id = k.contact_id AND v.event = ANY(string_to_array(k.names, ','))
         AND v.created_at >= greatest(k.created_at, k.since) AND v.created_at <= k.until
         AND (k.since IS NULL OR (v.created_at, v.id) > (k.since, coalesce(k.since_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')))
         AND (v.created_at, v.id) > (k.created_at, k.event_id)
     ORDER BY v.created_at DESC, v.id DESC
     LIMIT :limit)
    UNION ALL
    (SELECT v.id, v.event, v.occurred_at, v.created_at, v.payload, v.idempotency_key, v.wallet_address, v.email, v.external_id
     FROM log_events v
     WHERE k.names LIKE '%0x%:%' AND v.org_id = :org_id AND v.contact_id = k.contact_id AND NOT v.removed
         AND v.event = ANY(string_to_array(k.names, ','))
         AND v.created_at >= greatest(k.created_at, k.since) AND v.created_at <= k.until
         AND (k.since IS NULL OR (v.created_at, v.id) > (k.since, coalesce(k.since_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')))
         AND (v.created_at, v.id) > (k.created_at, k.event_id)
     ORDER BY v.created_at DESC, v.id DESC
     LIMIT :limit)
) AS a
ORDER BY 5, 2;

-- Recording decisions ----------------------------------------------------------------------------------------------

-- record_entries --
-- Write the states of entries and log their transitions; only a worker that holds the lease finds its row. An entry
-- that was cancelled meanwhile only ends, unless its effect happened already. A paused entry keeps its last error.
WITH r AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:entry_id ::uuid[], :token ::bigint[], :state ::text[], :outcome ::text[], :node_id ::text[], :step ::integer[],
                :attempt ::integer[], :due_at ::timestamptz[], :error ::text[], :since ::timestamptz[], :since_id ::uuid[], :awaits ::text[])
        AS r (id, token, state, outcome, node_id, step, attempts, due_at, last_error, since, since_id, awaits)
), recorded AS (
    UPDATE entries e
    SET state = r.state, outcome = r.outcome, node_id = r.node_id, step = r.step, attempts = r.attempts,
        due_at = coalesce(r.due_at, e.due_at), since = r.since, since_id = r.since_id,
        last_error = CASE WHEN r.state = 'paused' THEN e.last_error ELSE r.last_error END,
        awaits = string_to_array(r.awaits, ','),    -- names of events contain no commas
        lease_until = CASE WHEN r.state = 'running' THEN e.lease_until END, updated_at = :now ::timestamptz
    FROM r
    WHERE e.org_id = r.org_id AND e.id = r.id AND e.lease_token = r.token
        AND e.state || '' = 'running'    -- by key: the index on running entries has those of all engines
        AND (e.outcome IS NULL OR r.state = 'cancelled' OR :happened ::boolean)
    RETURNING e.id, e.state, e.outcome, CASE WHEN e.state <> 'paused' THEN e.last_error END AS last_error
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, 'running', state, :now ::timestamptz, coalesce(last_error, outcome)
    FROM recorded WHERE state <> 'running'
    RETURNING true
)
SELECT id::text FROM recorded;

-- find_cancellation --
-- Lock an entry that a worker holds; the outcome that it was cancelled with, or null. It stays so until commit.
SELECT outcome FROM entries
WHERE org_id = :org_id ::bigint AND id = :entry_id ::uuid AND lease_token = :token ::bigint AND state || '' = 'running'
FOR UPDATE;

-- find_paused --
-- Which of these automations are paused; they stay so until commit.
SELECT id::text FROM automations
WHERE org_id = :org_id ::bigint AND id = ANY(:ids ::uuid[]) AND paused_at IS NOT NULL
ORDER BY id
FOR SHARE;

-- has_step --
-- A row if a step is logged under a claim: then everything that was written with it is stored, too.
SELECT true FROM entry_steps
WHERE org_id = :org_id ::bigint AND entry_id = :entry_id ::uuid AND claim = :claim ::bigint AND step = :step ::integer;

-- add_steps --
-- Log the steps at nodes.
INSERT INTO entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, at)
SELECT :org_id ::bigint, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, at
FROM unnest(:entry_id ::uuid[], :claim ::bigint[], :step ::integer[], :attempt ::integer[], :node_id ::text[],
            :kind ::text[], :outcome ::text[], :handle ::text[], :detail ::jsonb[], :at ::timestamptz[])
    AS s (entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, at)
RETURNING true;

-- join_entries --
-- Record which entries joined which; what had joined one of them before joined that one, too.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:entry_id ::uuid[], :joined_entry ::uuid[]) AS k (id, joined_entry)
), own AS (
    UPDATE entries e SET joined_entry = k.joined_entry FROM k WHERE e.org_id = k.org_id AND e.id = k.id
    RETURNING true
)
UPDATE entries e SET joined_entry = k.joined_entry FROM k WHERE e.org_id = k.org_id AND e.joined_entry = k.id;

-- change_tags --
-- Remove tags (a JSON array) from contacts, then add those that they lack; the contacts' locks are held.
WITH a AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:contact_id ::uuid[], :removed ::jsonb[], :added ::jsonb[]) AS a (id, removed, added)
)
UPDATE contacts c SET updated_at = greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond'), tags =
    ARRAY(SELECT t FROM unnest(c.tags) AS t WHERE NOT a.removed ? t)
    || ARRAY(SELECT t FROM jsonb_array_elements_text(a.added) AS t WHERE t <> ALL (c.tags) OR a.removed ? t)
FROM a WHERE c.org_id = a.org_id AND c.id = a.id;
