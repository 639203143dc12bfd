-- Store contacts number `first` to `last`, with three identifiers each; digests are as random as the real ones.
WITH c AS MATERIALIZED (
    SELECT number, md5('contact ' || number)::uuid AS id, clock_timestamp() AS at FROM generate_series(%(first)s::bigint, %(last)s) AS number
), stored AS (
    INSERT INTO workbench.contacts (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes,
                                    created_at, updated_at)
    SELECT 1, id, 'enc1_' || md5('email ' || number) || md5('tag ' || number), 'example.com', '0x' || rpad(md5('wallet ' || number), 40, '0'),
           '0x' || rpad(md5('wallet ' || number), 40, '0'), 'filled_' || number, '{"plan": "pro", "country": "DE"}', at, at
    FROM c
)
INSERT INTO workbench.identities (org_id, kind, value_digest, contact_id, created_at)
SELECT 1, kind, md5('identity ' || kind || ' ' || number)::uuid, id, at FROM c, generate_series(1, 3) AS kind;
