-- Store events number `first` to `last` of 200 names, some much more frequent than others, over the time up to now, the oldest first.
WITH e AS MATERIALIZED (
    SELECT number, md5('contact ' || 1 + number %% %(contacts)s)::uuid AS contact_id, 'event_' || floor(200 * power(random(), 3)) AS event,
           clock_timestamp() - %(days)s::float8 * interval '1 day' * (1 - number / %(events)s::float8) AS at
    FROM generate_series(%(first)s::bigint, %(last)s) AS number
)
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                              wallet_address, email, external_id)
SELECT 1, uuidv7(), contact_id, event, at, at,
       jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC', 'method', 'card', 'txHash', '0x' || md5('tx ' || number)),
       'filled_' || number, '0x' || rpad(md5('wallet ' || number), 40, '0'), 'enc1_' || md5('email ' || number), 'filled_' || number
FROM e;
