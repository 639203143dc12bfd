-- Chains: following them, storing their logs, dropping those that a reorganization removes, and showing them to users.
--
-- `ORDER BY` in a lookup by key (CROSS JOIN LATERAL) keeps the planner from every index but that key.

-- Following a chain ------------------------------------------------------------------------------------------------

-- claim_chain --
-- Claim a chain if its lease has expired; the token is greater than every earlier one.
INSERT INTO chains (chain_id, token, lease_until) VALUES (:chain_id ::bigint, 1, :lease_until ::timestamptz)
ON CONFLICT (chain_id) DO UPDATE SET token = chains.token + 1, lease_until = :lease_until ::timestamptz
WHERE chains.lease_until <= :now ::timestamptz
RETURNING chain_id, token, block_number, dropping_above;

-- renew_chain --
-- Extend the lease; no row if another follower has claimed the chain. The row stays locked, so no other follower
-- claims it before this transaction ends.
UPDATE chains SET lease_until = :lease_until ::timestamptz
WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint
RETURNING true;

-- release_chain --
-- Let another follower claim the chain at once.
UPDATE chains SET lease_until = :now ::timestamptz WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint;

-- advance_chain --
-- Record that all logs up to this block are stored.
UPDATE chains SET block_number = :block_number ::bigint, head = :head ::bigint, read_at = :at ::timestamptz
WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint;

-- begin_dropping --
-- All logs above this block must be dropped before anything else is read; the lower block counts if an earlier
-- reorganization is not done yet.
UPDATE chains SET dropping_above = least(dropping_above, :above ::bigint)
WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint;

-- end_dropping --
-- Record that all logs of `begin_dropping` are dropped.
UPDATE chains SET dropping_above = NULL WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint;

-- last_read_block --
-- The last block of a chain that was read.
SELECT block_number FROM chains WHERE chain_id = :chain_id ::bigint;

-- set_chain_problem --
-- Record what prevents progress, or null.
UPDATE chains SET problem = :problem ::text
WHERE chain_id = :chain_id ::bigint AND token = :token ::bigint;

-- list_chains --
-- How far chains were read, and what prevents progress, including a missing follower.
SELECT c.chain_id, c.block_number, c.head, c.read_at,
       CASE WHEN c.lease_until <= :now THEN concat_ws('; ', 'no process follows it now', c.problem)
            WHEN c.block_number IS NULL THEN coalesce(c.problem, 'no block was read yet')
            ELSE c.problem END AS problem
FROM chains c ORDER BY c.chain_id;

-- add_blocks --
-- Store blocks that were read.
INSERT INTO chain_blocks (chain_id, number, hash)
SELECT :chain_id ::bigint, number, hash FROM unnest(:numbers ::bigint[], :hashes ::text[]) AS b (number, hash)
ON CONFLICT (chain_id, number) DO UPDATE SET hash = excluded.hash;

-- delete_blocks --
-- Delete blocks above one, and those far below, except the first of the chain.
DELETE FROM chain_blocks
WHERE chain_id = :chain_id ::bigint AND (number > :above ::bigint OR (number < :below ::bigint AND number > 0));

-- list_blocks --
-- The stored blocks, in order.
SELECT number, hash FROM chain_blocks WHERE chain_id = :chain_id ::bigint ORDER BY number;

-- What to look for -------------------------------------------------------------------------------------------------

-- watch_epoch --
-- A number that grows with every change of an automation or a watch of any organization.
SELECT coalesce(sum(epoch), 0)::bigint FROM automation_epochs WHERE org_id > 0;

-- watch_epochs --
-- That number for each organization.
SELECT org_id, epoch FROM automation_epochs WHERE org_id > 0;

-- chain_automations --
-- The active automations of some organizations that start from logs of a chain, with the trigger of the published
-- version, or of the draft if none is published. A paused automation takes no entries, but its logs are stored: other
-- entries wait for them, and it may wait for their confirmations.
SELECT t.org_id, t.id, t.published_version, t.activation, t.trigger_spec, t.live_since, t.earlier_confirmations, t.paused
FROM (
    SELECT a.org_id, a.id, a.published_version, a.activation, coalesce(v.trigger_spec, a.trigger_spec) AS trigger_spec,
           coalesce(a.live_since, a.created_at) AS live_since, a.earlier_confirmations, a.paused_at IS NOT NULL AS paused
    FROM automations a
    LEFT JOIN automation_versions v
        ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
    WHERE a.org_id = ANY(:org_ids ::bigint[]) AND a.active AND a.archived_at IS NULL
) t
WHERE t.trigger_spec ->> 'type' = 'onchain_event' AND t.trigger_spec ->> 'chainId' = :chain_id ::text
ORDER BY t.org_id, t.id;

-- chain_watches --
-- The events of contracts that some organizations keep without an automation.
SELECT org_id, chain_id, contract, signature, wallet_arg, created_at FROM chain_watches
WHERE org_id = ANY(:org_ids ::bigint[]) AND chain_id = :chain_id ::bigint
ORDER BY org_id, contract, signature;

-- awaited_logs --
-- The logs that entries of any version of these organizations' automations can wait for: an address, a colon, an
-- event in lower case.
SELECT DISTINCT a.org_id, awaited.event
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id
CROSS JOIN LATERAL unnest(v.awaits) AS awaited (event)
WHERE a.org_id = ANY(:org_ids ::bigint[]) AND a.active AND a.archived_at IS NULL AND awaited.event LIKE '0x%:%';

-- finish_lookback --
-- Record that these automations have looked back for logs that waited for the confirmations of an earlier version. If
-- another version was published since, its own look back is still to come.
UPDATE automations a SET earlier_confirmations = NULL
FROM unnest(:org_id ::bigint[], :automation_id ::uuid[], :version ::integer[]) AS k (org_id, id, version)
WHERE a.org_id = k.org_id AND a.id = k.id AND a.published_version = k.version;

-- add_watch --
-- Store the logs of a contract's event from now on.
INSERT INTO chain_watches (org_id, chain_id, contract, signature, wallet_arg, created_at)
VALUES (:org_id, :chain_id, :contract, :signature, :wallet_arg, :created_at)
ON CONFLICT (org_id, chain_id, contract, signature) DO UPDATE SET wallet_arg = excluded.wallet_arg;

-- remove_watch --
-- Stop storing the logs of an event; the stored logs stay.
DELETE FROM chain_watches WHERE org_id = :org_id AND chain_id = :chain_id AND contract = :contract AND signature = :signature
RETURNING true;

-- list_watches --
-- The events that an organization keeps without an automation.
SELECT org_id, chain_id, contract, signature, wallet_arg, created_at FROM chain_watches WHERE org_id = :org_id
ORDER BY chain_id, contract, signature;

-- Storing logs -----------------------------------------------------------------------------------------------------

-- known_logs --
-- The stored logs of the transactions of some logs: those in the chain, and dropped ones.
WITH k AS MATERIALIZED (
    SELECT DISTINCT :chain_id ::bigint AS chain_id, org_id, tx_hash
    FROM unnest(:org_id ::bigint[], :tx_hash ::text[]) AS k (org_id, tx_hash)
)
SELECT k.org_id, k.tx_hash, v.log_index, v.id, replace(v.digest::text, '-', '') AS digest, v.removed
FROM k CROSS JOIN LATERAL (
    (SELECT o.log_index, o.id, o.digest, o.removed FROM onchain_events o
     WHERE o.org_id = k.org_id AND o.chain_id = k.chain_id AND o.tx_hash >= k.tx_hash AND o.tx_hash <= k.tx_hash AND NOT o.removed
     ORDER BY o.tx_hash, o.log_index)    -- a range and an order that only the key of logs has
    UNION ALL
    (SELECT o.log_index, o.id, o.digest, o.removed FROM onchain_events o
     WHERE o.org_id = k.org_id AND o.chain_id = k.chain_id AND o.tx_hash >= k.tx_hash AND o.tx_hash <= k.tx_hash AND o.removed
     ORDER BY o.tx_hash, o.log_index)
) AS v;

-- confirmed_logs --
-- The logs of organizations in blocks above one and up to another; ranges may overlap.
SELECT DISTINCT ON (o.org_id, o.block_number, o.log_index, o.id)
       o.org_id, o.id, o.contract, o.event, o.signature, o.tx_hash, o.log_index, o.block_number,
       extract(epoch FROM o.block_time)::bigint AS seconds, o.args::text AS args,
       replace(o.digest::text, '-', '') AS digest, o.block_hash
FROM unnest(:org_id ::bigint[], :above ::bigint[], :until ::bigint[]) AS k (org_id, above, until)
CROSS JOIN LATERAL (
    SELECT * FROM onchain_events l
    WHERE l.org_id = k.org_id AND l.chain_id = :chain_id ::bigint AND l.block_number > k.above AND l.block_number <= k.until
        AND NOT l.removed
    ORDER BY l.block_number    -- the order of the index on blocks
) AS o
ORDER BY o.org_id, o.block_number, o.log_index, o.id;

-- add_logs --
-- Insert logs; times of blocks are seconds since the epoch. Parameters arrive like payloads of events (events.sql).
INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index, digest, block_number,
                            block_hash, block_time, args, created_at, stored_in)
SELECT org_id, id, contact_id, :chain_id ::bigint, contract, event, signature, tx_hash, log_index, digest, block_number, block_hash,
       to_timestamp(seconds), args::jsonb, :at ::timestamptz, (SELECT pg_current_xact_id()::text::bigint + :added ::bigint)
FROM unnest(:org_id ::bigint[], :id ::uuid[], :contact_id ::uuid[], :contract ::text[], :event ::text[], :signature ::text[],
            :tx_hash ::text[], :log_index ::integer[], :digest ::uuid[], :block_number ::bigint[], :block_hash ::text[],
            :seconds ::bigint[], string_to_array(:args, chr(30)))
    AS l (org_id, id, contact_id, contract, event, signature, tx_hash, log_index, digest, block_number, block_hash, seconds, args)
RETURNING true;

-- add_dead_logs --
-- Record logs that cannot be stored.
INSERT INTO chain_dead_logs (org_id, chain_id, tx_hash, log_index, contract, signature, block_number, reason, died_at)
SELECT org_id, :chain_id ::bigint, tx_hash, log_index, contract, signature, block_number, reason, :at ::timestamptz
FROM unnest(:org_id ::bigint[], :tx_hash ::text[], :log_index ::integer[], :contract ::text[], :signature ::text[],
            :block_number ::bigint[], :reasons ::text[])
    AS l (org_id, tx_hash, log_index, contract, signature, block_number, reason)
ON CONFLICT (org_id, chain_id, tx_hash, log_index) DO UPDATE
SET block_number = excluded.block_number, reason = excluded.reason, died_at = excluded.died_at;

-- set_log_contacts --
-- Set the contacts of logs that had none. Parts have logs with a contact only, so these are stored from now on.
WITH k AS MATERIALIZED (
    SELECT org_id, id, contact_id, pg_current_xact_id()::text::bigint + :added ::bigint AS stored_in
    FROM unnest(:org_id ::bigint[], :id ::uuid[], :contact_id ::uuid[]) AS k (org_id, id, contact_id)
)
UPDATE onchain_events o SET contact_id = k.contact_id, stored_in = k.stored_in
FROM k
WHERE o.org_id = k.org_id AND o.id = k.id AND num_nulls(o.contact_id) = 1;    -- an expression, so that Postgres cannot choose an index on contact_id

-- Reorganizations --------------------------------------------------------------------------------------------------

-- find_organizations_above --
-- The organizations with logs above a block.
SELECT g.id FROM organizations g
WHERE g.id IN (
    SELECT o.org_id FROM onchain_events o
    WHERE o.chain_id = :chain_id ::bigint AND o.block_number > :above ::bigint AND NOT o.removed)
ORDER BY g.id;

-- drop_logs --
-- The blocks above this one left the chain: mark an organization's next logs in them as removed, and cancel the
-- unfinished entries that they started, also those that a worker holds. Queued messages are skipped; messages being
-- sent may arrive. Returns the numbers of logs and entries, and the last block.
WITH page AS MATERIALIZED (
    SELECT o.id, o.block_number FROM onchain_events o
    WHERE o.org_id = :org_id ::bigint AND o.block_number > :above ::bigint AND NOT o.removed
        AND o.chain_id - 0 = :chain_id ::bigint    -- keeps the planner from the key of logs: rows are found by block
    ORDER BY o.block_number
    LIMIT :limit ::bigint
), dropped AS (
    UPDATE onchain_events o SET removed = true FROM page WHERE o.org_id = :org_id ::bigint AND o.id = page.id
), span AS MATERIALIZED (
    SELECT (SELECT id FROM page ORDER BY id LIMIT 1) AS first, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last
), started AS MATERIALIZED (
    SELECT a.org_id, f.id FROM span s CROSS JOIN automations a CROSS JOIN LATERAL (
        SELECT e.id, e.event_id FROM entries e
        WHERE e.org_id = a.org_id AND e.automation_id = a.id AND e.event_id >= s.first AND e.event_id <= s.last
        ORDER BY e.event_id    -- the order of the key of automation and event
    ) AS f
    WHERE a.org_id = :org_id ::bigint AND f.event_id IN (SELECT id FROM page)
        AND (a.trigger_spec ->> 'type' = 'onchain_event' OR (
            SELECT true FROM automation_versions v
            WHERE v.org_id = a.org_id AND v.automation_id = a.id AND v.trigger_spec ->> 'type' = 'onchain_event'
            ORDER BY v.version LIMIT 1))
), live AS (
    SELECT e.id, e.state
    FROM (SELECT id FROM started ORDER BY id) AS s CROSS JOIN LATERAL (
        SELECT id, state FROM entries
        WHERE org_id = :org_id ::bigint AND id = s.id AND state || '' IN ('pending', 'running', 'waiting', 'retrying', 'paused')
        FOR UPDATE
    ) AS e
), moved AS (
    UPDATE entries e
    SET state = 'cancelled', outcome = 'chain_reorg', lease_token = e.lease_token + 1, lease_until = NULL,
        updated_at = :at ::timestamptz
    FROM live
    WHERE e.org_id = :org_id ::bigint AND e.id = live.id
    RETURNING e.id, live.state
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, state, 'cancelled', :at ::timestamptz, 'chain_reorg' FROM moved
    RETURNING true
), unsent AS (
    UPDATE messages m
    SET status = CASE WHEN m.status = 'queued' AND NOT m.in_doubt THEN 'skipped' ELSE 'unknown' END
    FROM moved r
    WHERE m.org_id = :org_id ::bigint AND m.entry_id = r.id AND m.status IN ('queued', 'sending')
    RETURNING m.id, m.status, m.channel
), outcomes AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT :org_id ::bigint, :at ::timestamptz, id, status, channel, 'chain_reorg' FROM unsent
    RETURNING true
)
SELECT (SELECT count(*) FROM page) AS logs, (SELECT count(*) FROM moved) AS entries, (SELECT max(block_number) FROM page) AS block_number;

-- restore_logs --
-- Restore dropped logs that returned, in another block or at another position in it.
UPDATE onchain_events o
SET removed = false, log_index = k.log_index, block_number = k.block_number, block_hash = k.block_hash,
    block_time = to_timestamp(k.seconds)
FROM unnest(:org_id ::bigint[], :id ::uuid[], :log_index ::integer[], :block_number ::bigint[], :block_hash ::text[], :seconds ::bigint[])
    AS k (org_id, id, log_index, block_number, block_hash, seconds)
WHERE o.org_id = k.org_id AND o.id = k.id;

-- restore_entries --
-- Entries that ended because their logs were dropped resume where they were, and so do the messages that they were
-- about to send.
WITH page AS MATERIALIZED (
    SELECT id FROM unnest(:event_ids ::uuid[]) AS v (id)
), span AS MATERIALIZED (
    SELECT (SELECT id FROM page ORDER BY id LIMIT 1) AS first, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last
), ended AS MATERIALIZED (
    SELECT a.org_id, f.id FROM span s CROSS JOIN automations a CROSS JOIN LATERAL (
        SELECT e.id, e.event_id FROM entries e
        WHERE e.org_id = a.org_id AND e.automation_id = a.id AND e.event_id >= s.first AND e.event_id <= s.last
            AND e.state || '' = 'cancelled' AND e.outcome = 'chain_reorg'
        ORDER BY e.event_id    -- the order of the key of automation and event
    ) AS f
    WHERE a.org_id = :org_id ::bigint AND f.event_id IN (SELECT id FROM page)
        AND (a.trigger_spec ->> 'type' = 'onchain_event' OR (
            SELECT true FROM automation_versions v
            WHERE v.org_id = a.org_id AND v.automation_id = a.id AND v.trigger_spec ->> 'type' = 'onchain_event'
            ORDER BY v.version LIMIT 1))
), moved AS (
    UPDATE entries e
    SET state = 'pending', outcome = NULL, attempts = 0, due_at = :at ::timestamptz, turn_at = NULL, updated_at = :at ::timestamptz
    FROM ended
    WHERE e.org_id = ended.org_id AND e.id = ended.id AND e.state || '' = 'cancelled'
    RETURNING e.id, e.node_id
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, 'cancelled', 'pending', :at ::timestamptz, 'chain_reorg' FROM moved
    RETURNING true
), queued AS (
    UPDATE messages m SET status = 'queued'
    FROM moved r
    WHERE m.org_id = :org_id ::bigint AND m.entry_id = r.id AND m.node_id = r.node_id AND m.status = 'skipped' AND m.body IS NOT NULL
)
SELECT count(*) FROM moved;

-- Wallets that are not a contact's ---------------------------------------------------------------------------------
-- Logs that pass the filters of automations but are about wallets without a contact. `unknown_wallet_counts` has their
-- numbers by hour.

-- find_erased_wallets --
-- Which of these wallets belong to erased contacts, and the time of the erasure (seconds since the epoch);
-- `position` counts from 0.
WITH k AS MATERIALIZED (
    SELECT * FROM unnest(:org_ids ::bigint[], :digests ::uuid[]) WITH ORDINALITY AS k (org_id, digest, position)
)
SELECT k.position - 1, extract(epoch FROM e.erased_at)::float8
FROM k CROSS JOIN LATERAL (
    SELECT w.erased_at FROM erased_wallets w WHERE w.org_id = k.org_id AND w.wallet_digest = k.digest
    ORDER BY w.wallet_digest    -- by key
) AS e;

-- count_created --
-- How many contacts automations created in an hour.
SELECT k.automation_id, s.count
FROM unnest(:org_ids ::bigint[], :automation_ids ::uuid[]) AS k (org_id, automation_id)
CROSS JOIN LATERAL (
    SELECT c.count FROM unknown_wallet_counts c
    WHERE c.org_id = k.org_id AND c.automation_id = k.automation_id AND c.hour = :hour ::timestamptz AND c.what = 'created'
    ORDER BY c.hour    -- by key
) AS s;

-- add_unknown_wallets --
-- Add to the hourly counts of logs about wallets without a contact.
INSERT INTO unknown_wallet_counts AS s (org_id, automation_id, hour, what, count)
SELECT org_id, automation_id, :hour ::timestamptz, what, count
FROM unnest(:org_id ::bigint[], :automation_id ::uuid[], :what ::text[], :count ::bigint[])
    AS k (org_id, automation_id, what, count)
ORDER BY org_id, automation_id, what
ON CONFLICT (org_id, automation_id, hour, what) DO UPDATE SET count = s.count + excluded.count;

-- list_unknown_wallets --
-- The counts of an organization's automations since a time, highest first.
SELECT s.automation_id, a.name AS automation, s.what, sum(s.count)::bigint AS count
FROM unknown_wallet_counts s
JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
WHERE s.org_id = :org_id AND s.hour >= :since
GROUP BY s.automation_id, a.name, s.what
ORDER BY sum(s.count) DESC, a.name, s.what;

-- delete_old_unknown_wallets --
-- Delete the oldest counts, which are kept for seven days.
DELETE FROM unknown_wallet_counts s
USING (SELECT automation_id, hour, what FROM unknown_wallet_counts WHERE org_id = :org_id AND hour < :now ::timestamptz - :retention ::interval LIMIT :limit) old
WHERE s.org_id = :org_id AND s.automation_id = old.automation_id AND s.hour = old.hour AND s.what = old.what;

-- Logs as people see them ------------------------------------------------------------------------------------------

-- recent_logs --
-- The newest logs of an organization on any chain, of one event if given, older than one (its id) if given.
SELECT o.created_at, o.id, o.chain_id, o.contract, o.event, o.signature, o.tx_hash, o.log_index, o.block_number, o.block_time, o.removed,
       o.contact_id, o.args
FROM onchain_events o
WHERE o.org_id = :org_id AND o.id < coalesce(:before ::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (:event ::text IS NULL OR o.event = :event)
ORDER BY o.id DESC
LIMIT :limit;

-- recent_logs_of_contract --
-- The newest logs of one contract, like `recent_logs`.
SELECT o.created_at, o.id, o.chain_id, o.contract, o.event, o.signature, o.tx_hash, o.log_index, o.block_number, o.block_time, o.removed,
       o.contact_id, o.args
FROM onchain_events o
WHERE o.org_id = :org_id AND o.contract = :contract AND o.id < coalesce(:before ::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (:event ::text IS NULL OR o.event = :event)
ORDER BY o.id DESC
LIMIT :limit;

-- count_logs --
-- The number of logs of each event among the newest of an organization.
SELECT l.chain_id, l.contract, l.event, l.signature, count(*) AS count
FROM (
    SELECT chain_id, contract, event, signature FROM onchain_events
    WHERE org_id = :org_id AND NOT removed
    ORDER BY id DESC LIMIT :limit
) l
GROUP BY l.chain_id, l.contract, l.event, l.signature
ORDER BY count(*) DESC, l.contract, l.event, l.chain_id, l.signature;

-- count_dead_logs --
-- How many logs of each chain could not be stored.
SELECT chain_id, count(*) FROM chain_dead_logs WHERE org_id > 0 GROUP BY chain_id ORDER BY chain_id;

-- list_dead_logs --
-- The newest logs that could not be stored, of all organizations.
SELECT o.name AS organization, d.chain_id, d.tx_hash, d.log_index, d.contract, d.signature, d.block_number, d.reason, d.died_at
FROM chain_dead_logs d JOIN organizations o ON o.id = d.org_id
WHERE d.org_id > 0
ORDER BY d.died_at DESC, d.org_id, d.chain_id, d.tx_hash, d.log_index LIMIT :limit;
