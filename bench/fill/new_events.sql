-- Store new events number `first` to `last` after `before` others, each of another contact, like ingest: at the end of the table, with the number of their
-- transaction. The contacts are spread over all of them, as the stored events of consecutive ones lie together.
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, stored_in)
SELECT 1, uuidv7(), md5('contact ' || 1 + ((%(before)s::bigint + number) * 7919) %% %(contacts)s)::uuid, 'event_' || floor(200 * power(random(), 3)),
       clock_timestamp(), clock_timestamp(), jsonb_build_object('amountUsd', number %% 1000, 'asset', 'USDC'), 'new_' || uuidv7(),
       (SELECT pg_current_xact_id()::text::bigint + (SELECT max(added) FROM workbench.clusters))
FROM generate_series(%(first)s::bigint, %(last)s) AS number;
