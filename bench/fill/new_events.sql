-- Store as many new events as `first` to `last` of random contacts, like ingest: at the end of the table, with the number of their
-- transaction.
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, stored_in)
SELECT 1, uuidv7(), md5('contact ' || 1 + floor(random() * %(contacts)s)::bigint)::uuid, 'event_' || floor(200 * power(random(), 3)),
       clock_timestamp(), clock_timestamp(), jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC'), 'new_' || uuidv7(),
       (SELECT pg_current_xact_id()::text::bigint + (SELECT max(added) FROM workbench.clusters))
FROM generate_series(%(first)s::bigint, %(last)s) AS number;
