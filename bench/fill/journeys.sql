-- Store events number `first` to `last` of those contacts: each signed up, and looked at pages and paid at any time of four weeks.
WITH e AS MATERIALIZED (
    SELECT number, uuidv7() AS id, md5('contact ' || 1 + number %% %(contacts)s)::uuid AS contact_id, number / %(contacts)s AS nth,
           clock_timestamp() - random() * interval '28 days' AS at
    FROM generate_series(%(first)s::bigint - 1, %(last)s - 1) AS number
)
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, external_id)
SELECT 1, id, contact_id, CASE WHEN nth = 0 THEN 'signup' WHEN nth %% 4 = 0 THEN 'deposit' ELSE 'page.view' END, at, at,
       jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC', 'method', 'card', 'txHash', '0x' || md5('tx ' || number)),
       'journey_' || number, 'filled_' || number
FROM e;
