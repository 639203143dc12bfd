-- Store one deposit each of `count` contacts, with a pending entry, as ingest does, and notify the engines. The ids are
-- random, because only Postgres 18 can generate ids in the order of time: this costs the indexes a little more.
WITH e AS MATERIALIZED (
    SELECT gen_random_uuid() AS id, gen_random_uuid() AS entry_id, row_number() OVER () AS number, clock_timestamp() AS at,
           c.id AS contact_id, c.wallet_address, c.email, c.external_id
    FROM (SELECT * FROM workbench.contacts WHERE org_id = 1 ORDER BY id LIMIT %(count)s) AS c
), stored AS (
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                                  wallet_address, email, external_id)
    SELECT 1, id, contact_id, 'deposit', at, at,
           jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC', 'method', 'card', 'txHash', '0x' || md5('tx ' || number)),
           'due_' || id, wallet_address, email, external_id
    FROM e
    RETURNING true
), entered AS (
    INSERT INTO workbench.entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id,
                                   state, due_at, created_at, updated_at)
    SELECT 1, entry_id, %(automation_id)s, 1, id, at, contact_id, 'pending', at, at, at FROM e
    RETURNING true
)
SELECT pg_notify('workbench_entries', '');
