-- Store `count` contacts, a deposit of each, and an entry that waits at one of three steps; all waits end `ends_in` seconds from now,
-- within `spread` seconds. The first steps were taken three days before.
WITH c AS MATERIALIZED (
    SELECT number, md5('waiting ' || number)::uuid AS id, gen_random_uuid() AS event_id, gen_random_uuid() AS entry_id,
           (ARRAY['pause', 'order', 'date'])[1 + number %% 3] AS node_id,
           date_trunc('milliseconds', clock_timestamp()) - interval '3 days'
               + (%(ends_in)s + number %% %(spread)s) * interval '1 second' AS since
    FROM generate_series(1, %(count)s::bigint) AS number
), stored AS (
    INSERT INTO workbench.contacts (org_id, id, wallet_address, wallet_raw, attributes, created_at, updated_at)
    SELECT 1, id, '0x' || lpad(to_hex(number), 40, '0'), '0x' || lpad(to_hex(number), 40, '0'),
           jsonb_build_object('renewsAt', to_char((since + interval '3 days') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')), since, since
    FROM c
    RETURNING true
), happened AS (
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, wallet_address)
    SELECT 1, event_id, id, 'deposit', since, since, '{"amountUsd": 100, "asset": "USDC"}', 'waiting_' || event_id,
           '0x' || lpad(to_hex(number), 40, '0')
    FROM c
    RETURNING true
), entered AS (
    INSERT INTO workbench.entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id, state, node_id, step,
                                   due_at, since, since_id, awaits, created_at, updated_at)
    SELECT 1, entry_id, %(automation_id)s, 1, event_id, since, id, 'waiting', node_id, 2, since + interval '3 days', since, event_id,
           CASE node_id WHEN 'order' THEN ARRAY['order'] WHEN 'date' THEN ARRAY['@renewsAt', '@timezone'] END, since, since
    FROM c
    RETURNING true
)
INSERT INTO workbench.entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, at)
SELECT 1, entry_id, 0, number, 1, node_id, kind, outcome, since
FROM (
    SELECT entry_id, since, s.* FROM c CROSS JOIN LATERAL (VALUES
        (0, 't', 'app_event', 'entered'), (1, 'way', 'split', 'branched'), (2, c.node_id, 'delay', 'waiting')
    ) AS s (number, node_id, kind, outcome)
) AS steps;
