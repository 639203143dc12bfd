-- Give the FastAPI endpoint the returning contacts, number 0 to `last`, as `traffic` sends them.
INSERT INTO contacts (id, org_id, wallet_address, email, external_id, attributes)
SELECT gen_random_uuid(), 1, '0x' || lpad(to_hex(number), 40, '0'), 'user' || number || '@example.com', 'user_' || number,
       '{"plan": "pro", "country": "DE"}'
FROM generate_series(0, %(last)s) AS number;
