-- Imported history. Everything else an import does is the live ingest's (`ingest.sql`): only moments differ, because
-- what happened long ago is dated by when it happened.

-- date_contacts --
-- New contacts date from their first event; moments are microseconds since the epoch.
UPDATE contacts c SET created_at = timestamptz 'epoch' + d.created_us * interval '1 microsecond'
FROM unnest(:ids ::uuid[], :created_us ::bigint[]) AS d (id, created_us)
WHERE c.org_id = :org_id AND c.id = d.id;

-- add_past_events --
-- Store events of the past, created when they occurred.
COPY events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
             wallet_address, email, external_id, stored_in) FROM STDIN;
