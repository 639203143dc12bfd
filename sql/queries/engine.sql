-- The engine: find work, claim it, read what a decision needs, record what was decided.

-- due_organizations --
-- Organizations with entries that are due now: in the first lane, in the retry lane, or with an expired lease.
SELECT * FROM (SELECT o.id,
       EXISTS (SELECT FROM entries e WHERE e.org_id = o.id AND e.state IN ('pending', 'waiting') AND e.due_at <= :now) AS ready,
       EXISTS (SELECT FROM entries e WHERE e.org_id = o.id AND e.state = 'retrying' AND e.due_at <= :now) AS retrying,
       EXISTS (SELECT FROM entries e WHERE e.org_id = o.id AND e.state = 'running' AND e.lease_until <= :now) AS expired
FROM organizations o) AS due
WHERE ready OR retrying OR expired;

-- next_due --
-- The moment at which the next entry is due in any organization; null when none waits.
SELECT min(due_at) FROM (
    SELECT (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.id AND e.state IN ('pending', 'waiting')) AS due_at
    FROM organizations o
    UNION ALL
    SELECT (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.id AND e.state = 'retrying')
    FROM organizations o
    UNION ALL
    SELECT (SELECT min(e.lease_until) FROM entries e WHERE e.org_id = o.id AND e.state = 'running')
    FROM organizations o
) AS due;

-- claim_ready --
-- Take due entries of one organization: running, one attempt more, a lease that others respect.
WITH due AS (
    SELECT id, state FROM entries
    WHERE org_id = :org_id AND state IN ('pending', 'waiting') AND due_at <= :now
    ORDER BY due_at LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE entries e
SET state = 'running', attempts = e.attempts + 1, lease_token = e.lease_token + 1, lease_until = :lease_until, updated_at = :now
FROM due
WHERE e.org_id = :org_id AND e.id = due.id
RETURNING e.id, e.automation_id, e.automation_version, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.step,
          e.attempts, e.lease_token, e.lease_until, e.since, due.state;

-- claim_retrying --
-- The same for entries that wait for another try.
WITH due AS (
    SELECT id, state FROM entries
    WHERE org_id = :org_id AND state = 'retrying' AND due_at <= :now
    ORDER BY due_at LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE entries e
SET state = 'running', attempts = e.attempts + 1, lease_token = e.lease_token + 1, lease_until = :lease_until, updated_at = :now
FROM due
WHERE e.org_id = :org_id AND e.id = due.id
RETURNING e.id, e.automation_id, e.automation_version, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.step,
          e.attempts, e.lease_token, e.lease_until, e.since, due.state;

-- rescue --
-- Give entries back whose worker let its lease expire; they are tried again at once.
WITH expired AS (
    SELECT id FROM entries
    WHERE org_id = :org_id AND state = 'running' AND lease_until <= :now
    ORDER BY lease_until LIMIT :most
    FOR UPDATE SKIP LOCKED
)
UPDATE entries e
SET state = 'retrying', due_at = :now, lease_token = e.lease_token + 1, lease_until = NULL, updated_at = :now,
    last_error = 'lease_expired: the worker stopped in the middle'
FROM expired
WHERE e.org_id = :org_id AND e.id = expired.id
RETURNING e.id;

-- renew_leases --
-- Keep entries that take long; those whose lease is no longer ours are not returned.
UPDATE entries e SET lease_until = :lease_until
FROM unnest(:ids ::uuid[], :tokens ::bigint[]) AS k (id, token)
WHERE e.org_id = :org_id AND e.id = k.id AND e.lease_token = k.token
RETURNING e.id;

-- record_entries --
-- Write where entries stand; only a worker that still holds the lease finds its row.
UPDATE entries e
SET state = r.state, outcome = r.outcome, node_id = r.node_id, step = r.step, attempts = r.attempts,
    due_at = coalesce(r.due_at, e.due_at), last_error = r.last_error, since = r.since,
    awaits = string_to_array(r.awaits, ','),    -- names of events have no commas
    lease_until = CASE WHEN r.state = 'running' THEN e.lease_until END, updated_at = :now
FROM unnest(:ids ::uuid[], :tokens ::bigint[], :states ::text[], :outcomes ::text[], :node_ids ::text[], :steps ::integer[],
            :attempts ::integer[], :due ::timestamptz[], :errors ::text[], :since ::timestamptz[], :awaits ::text[])
    AS r (id, token, state, outcome, node_id, step, attempts, due_at, last_error, since, awaits)
WHERE e.org_id = :org_id AND e.id = r.id AND e.lease_token = r.token
RETURNING e.id;

-- add_transitions --
-- Log moves between states.
INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
SELECT :org_id, entry_id, from_state, to_state, :at, reason
FROM unnest(:entry_ids ::uuid[], :from_states ::text[], :to_states ::text[], :reasons ::text[])
    AS t (entry_id, from_state, to_state, reason);

-- add_steps --
-- Log what happened at nodes.
INSERT INTO entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, at)
SELECT :org_id, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, :at
FROM unnest(:entry_ids ::uuid[], :claims ::bigint[], :steps ::integer[], :attempts ::integer[], :node_ids ::text[],
            :kinds ::text[], :outcomes ::text[], :handles ::text[], :details ::jsonb[])
    AS s (entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail);

-- add_messages --
-- Store in-app messages; the id of a message is one for ever, so a second time changes nothing.
INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, wallet_address,
                      subject, body, extra, created_at, sent_at)
SELECT :org_id, id, contact_id, automation_id, entry_id, node_id, 1, 'inapp', 'sent', wallet_address, subject, body, extra,
       :at, :at
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :automation_ids ::uuid[], :entry_ids ::uuid[], :node_ids ::text[],
            :wallets ::text[], :subjects ::text[], :bodies ::text[], :extras ::jsonb[])
    AS m (id, contact_id, automation_id, entry_id, node_id, wallet_address, subject, body, extra)
ON CONFLICT (org_id, id) DO NOTHING
RETURNING id;

-- change_tags --
-- Take tags (a JSON array) from contacts, then give them those that they lack; the contacts' locks are held.
UPDATE contacts c SET updated_at = :at, tags =
    ARRAY(SELECT t FROM unnest(c.tags) AS t WHERE NOT a.removed ? t)
    || ARRAY(SELECT t FROM jsonb_array_elements_text(a.added) AS t WHERE t <> ALL (c.tags) OR a.removed ? t)
FROM unnest(:ids ::uuid[], :removed ::jsonb[], :added ::jsonb[]) AS a (id, removed, added)
WHERE c.org_id = :org_id AND c.id = a.id;
