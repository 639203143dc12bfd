-- Store events number `first` to `last` of those contacts, with their idempotency keys. All are in the month that ingest writes
-- into, the hardest case: index entries of new events fall among all others. Each contact has events of all the names in turn.
WITH e AS MATERIALIZED (
    SELECT number, uuidv7() AS id, (%(names)s::text[])[1 + number / %(contacts)s %% cardinality(%(names)s::text[])] AS event, md5('contact ' || 1 + number %% %(contacts)s)::uuid AS contact_id,
           date_trunc('month', clock_timestamp())
               + random() * (clock_timestamp() - date_trunc('month', clock_timestamp())) AS at
    FROM generate_series(%(first)s::bigint, %(last)s) AS number
), remembered AS (
    INSERT INTO workbench.idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)
    SELECT 1, md5('key ' || number)::uuid, id, md5('body ' || number)::uuid, at FROM e
)
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                              wallet_address, email, external_id)
SELECT 1, id, contact_id, event, at, at,
       jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC', 'method', 'card', 'txHash', '0x' || md5('tx ' || number)),
       'filled_' || number, '0x' || rpad(md5('wallet ' || number), 40, '0'), 'enc1_' || md5('email ' || number), 'filled_' || number
FROM e;
