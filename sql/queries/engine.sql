-- The engine: find work, claim it, record what was decided.
-- Rows are found by the keys of a batch, which carries the organization in a column: were it a constant in the join, a plan made
-- while a table was empty would go through all rows of the organization for every batch.

-- due_organizations --
-- Organizations with entries that are due now: in the first lane, in the retry lane, or with an expired lease.
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
-- The moment at which the next entry is due in any organization; null when none waits.
SELECT min(least(
    (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.org_id AND e.state IN ('pending', 'waiting')),
    (SELECT min(e.due_at) FROM entries e WHERE e.org_id = o.org_id AND e.state = 'retrying'),
    (SELECT min(e.lease_until) FROM entries e WHERE e.org_id = o.org_id AND e.state = 'running')))
FROM automation_epochs o;

-- claim_ready --
-- Take due entries of one organization: running, one attempt more, a lease that others respect.
WITH due AS (
    SELECT org_id, id, state FROM entries
    WHERE org_id = :org_id ::bigint AND state IN ('pending', 'waiting') AND due_at <= :now ::timestamptz
    ORDER BY due_at LIMIT :most
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE entries e
    SET state = 'running', attempts = e.attempts + 1, lease_token = e.lease_token + 1,
        lease_until = :lease_until ::timestamptz, updated_at = :now ::timestamptz
    FROM due
    WHERE e.org_id = due.org_id AND e.id = due.id
    RETURNING e.id, e.automation_id, e.automation_version, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.step,
              e.attempts, e.lease_token, e.lease_until, e.since, e.stint, e.request_id, e.outcome, due.state AS came_from
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)
    SELECT :org_id ::bigint, id, came_from, 'running', :now ::timestamptz FROM claimed
    RETURNING true
)
SELECT id::text, automation_id::text, automation_version, event_id::text, event_created_at, contact_id::text, node_id, step,
       attempts, lease_token, lease_until, since, stint, request_id, outcome
FROM claimed;

-- claim_retrying --
-- The same for entries that wait for another try.
WITH due AS (
    SELECT org_id, id, state FROM entries
    WHERE org_id = :org_id ::bigint AND state = 'retrying' AND due_at <= :now ::timestamptz
    ORDER BY due_at LIMIT :most
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE entries e
    SET state = 'running', attempts = e.attempts + 1, lease_token = e.lease_token + 1,
        lease_until = :lease_until ::timestamptz, updated_at = :now ::timestamptz
    FROM due
    WHERE e.org_id = due.org_id AND e.id = due.id
    RETURNING e.id, e.automation_id, e.automation_version, e.event_id, e.event_created_at, e.contact_id, e.node_id, e.step,
              e.attempts, e.lease_token, e.lease_until, e.since, e.stint, e.request_id, e.outcome, due.state AS came_from
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)
    SELECT :org_id ::bigint, id, came_from, 'running', :now ::timestamptz FROM claimed
    RETURNING true
)
SELECT id::text, automation_id::text, automation_version, event_id::text, event_created_at, contact_id::text, node_id, step,
       attempts, lease_token, lease_until, since, stint, request_id, outcome
FROM claimed;

-- rescue --
-- Give entries back whose worker let its lease expire; they are tried again at once.
WITH expired AS (
    SELECT org_id, id FROM entries
    WHERE org_id = :org_id ::bigint AND state = 'running' AND lease_until <= :now ::timestamptz
    ORDER BY lease_until LIMIT :most
    FOR UPDATE SKIP LOCKED
), rescued AS (
    UPDATE entries e
    SET state = 'retrying', due_at = :now ::timestamptz, lease_token = e.lease_token + 1, lease_until = NULL,
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
-- Keep entries that take long; those whose lease is no longer ours are not returned.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:ids ::uuid[], :tokens ::bigint[]) AS k (id, token)
)
UPDATE entries e SET lease_until = :lease_until ::timestamptz
FROM k WHERE e.org_id = k.org_id AND e.id = k.id AND e.lease_token = k.token
RETURNING e.id::text;

-- record_entries --
-- Write where entries stand, and log their moves; only a worker that still holds the lease finds its row. What was called off
-- meanwhile only ends, unless what it did has happened already. One that rests keeps what went wrong before.
WITH r AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:ids ::uuid[], :tokens ::bigint[], :states ::text[], :outcomes ::text[], :node_ids ::text[], :steps ::integer[],
                :attempts ::integer[], :due ::timestamptz[], :errors ::text[], :since ::timestamptz[], :awaits ::text[])
        AS r (id, token, state, outcome, node_id, step, attempts, due_at, last_error, since, awaits)
), recorded AS (
    UPDATE entries e
    SET state = r.state, outcome = r.outcome, node_id = r.node_id, step = r.step, attempts = r.attempts,
        due_at = coalesce(r.due_at, e.due_at), since = r.since,
        last_error = CASE WHEN r.state = 'paused' THEN e.last_error ELSE r.last_error END,
        awaits = string_to_array(r.awaits, ','),    -- names of events have no commas
        lease_until = CASE WHEN r.state = 'running' THEN e.lease_until END, updated_at = :now ::timestamptz
    FROM r
    WHERE e.org_id = r.org_id AND e.id = r.id AND e.lease_token = r.token
        AND e.state || '' = 'running'    -- by the key, not by a lane: that one holds whatever all engines have in hand
        AND (e.outcome IS NULL OR r.state = 'cancelled' OR :happened ::boolean)
    RETURNING e.id, e.state, e.outcome, CASE WHEN e.state <> 'paused' THEN e.last_error END AS last_error
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, 'running', state, :now ::timestamptz, coalesce(last_error, outcome)
    FROM recorded WHERE state <> 'running'
    RETURNING true
)
SELECT id::text FROM recorded;

-- called_off --
-- An entry that a worker holds, with the outcome that it was called off with (null: it was not). That stays so until commit.
SELECT outcome FROM entries
WHERE org_id = :org_id ::bigint AND id = :id ::uuid AND lease_token = :token ::bigint AND state || '' = 'running'
FOR UPDATE;

-- share_paused --
-- How many of these automations are paused; that stays so until commit.
SELECT count(*) FROM (
    SELECT FROM automations
    WHERE org_id = :org_id ::bigint AND id = ANY(:ids ::uuid[]) AND paused_at IS NOT NULL
    ORDER BY id
    FOR SHARE
) AS paused;

-- has_step --
-- A row when a step is logged under a claim: then all that was written with it is there, too.
SELECT step FROM entry_steps
WHERE org_id = :org_id ::bigint AND entry_id = :entry_id ::uuid AND claim = :claim ::bigint AND step = :step ::integer;

-- add_steps --
-- Log what happened at nodes.
INSERT INTO entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, at)
SELECT :org_id ::bigint, entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail, :at ::timestamptz
FROM unnest(:entry_ids ::uuid[], :claims ::bigint[], :steps ::integer[], :attempts ::integer[], :node_ids ::text[],
            :kinds ::text[], :outcomes ::text[], :handles ::text[], :details ::jsonb[])
    AS s (entry_id, claim, step, attempt, node_id, kind, outcome, handle, detail)
RETURNING true;

-- add_messages --
-- Store in-app messages; the id of a message is one for ever, so a second time changes nothing.
WITH new AS (
    INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, wallet_address,
                          subject, body, extra, created_at, sent_at)
    SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, 'inapp', 'sent', wallet_address, subject, body,
           extra, :at ::timestamptz, :at ::timestamptz
    FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :automation_ids ::uuid[], :entry_ids ::uuid[], :node_ids ::text[],
                :wallets ::text[], :subjects ::text[], :bodies ::text[], :extras ::jsonb[])
        AS m (id, contact_id, automation_id, entry_id, node_id, wallet_address, subject, body, extra)
    ON CONFLICT (org_id, id) DO NOTHING
    RETURNING id
), noted AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel)
    SELECT :org_id ::bigint, :at ::timestamptz, id, 'sent', 'inapp' FROM new
    RETURNING true
)
SELECT id::text FROM new;

-- change_tags --
-- Take tags (a JSON array) from contacts, then give them those that they lack; the contacts' locks are held.
WITH a AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, * FROM unnest(:ids ::uuid[], :removed ::jsonb[], :added ::jsonb[]) AS a (id, removed, added)
)
UPDATE contacts c SET updated_at = :at ::timestamptz, tags =
    ARRAY(SELECT t FROM unnest(c.tags) AS t WHERE NOT a.removed ? t)
    || ARRAY(SELECT t FROM jsonb_array_elements_text(a.added) AS t WHERE t <> ALL (c.tags) OR a.removed ? t)
FROM a WHERE c.org_id = a.org_id AND c.id = a.id;
