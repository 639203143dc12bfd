-- Store contacts number `first` to `last` with a wallet and an external id. They have no email: nothing could open it.
INSERT INTO workbench.contacts (org_id, id, wallet_address, wallet_raw, external_id, attributes, created_at, updated_at)
SELECT 1, gen_random_uuid(), wallet, wallet, 'recipient_' || number, '{"plan": "pro", "country": "DE"}', clock_timestamp(), clock_timestamp()
FROM (SELECT number, '0x' || lpad(to_hex(number), 40, '0') AS wallet FROM generate_series(%(first)s::bigint, %(last)s) AS number) AS c;
