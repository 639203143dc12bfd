-- remember_keys --
-- Claim idempotency keys, in the order given (sorted by the caller); how many of them were new.
WITH new AS (
    INSERT INTO idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)
    SELECT org_id, key_digest, event_id, body_digest, :created_at ::timestamptz
    FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[], :event_ids ::uuid[], :body_digests ::uuid[])
        AS k (org_id, key_digest, event_id, body_digest)
    ON CONFLICT (org_id, key_digest) DO NOTHING
    RETURNING 1
)
SELECT count(*) FROM new;

-- find_holders --
-- The events that hold these idempotency keys, with the digest of the body they came with; `position` counts from 0.
SELECT k.position - 1, i.event_id::text, i.body_digest::text
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[]) WITH ORDINALITY AS k (org_id, key_digest, position)
JOIN idempotency_keys i ON i.org_id = k.org_id AND i.key_digest = k.key_digest;

-- add_mismatches --
-- Keep keys that came back with another body.
INSERT INTO idempotency_mismatches (org_id, id, event_id, created_at)
SELECT org_id, id, event_id, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :event_ids ::uuid[]) AS m (org_id, id, event_id)
RETURNING true;

-- find_owners --
-- The contacts that own these identifiers, and whether they have these attributes already; `position` counts from 0.
SELECT k.position - 1, c.id::text, c.wallet_address, c.email, c.external_id,
       coalesce(c.attributes @> k.attributes::jsonb, true)
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], string_to_array(:attributes, chr(30), ''))
    WITH ORDINALITY AS k (org_id, kind, digest, attributes, position)
JOIN identities i ON i.org_id = k.org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = i.org_id AND c.id = i.contact_id;

-- add_contacts --
-- New contacts.
INSERT INTO contacts (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, created_at, updated_at)
SELECT org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, :created_at ::timestamptz, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[], :attributes ::jsonb[])
    AS c (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id, attributes)
RETURNING true;

-- lose_emails --
-- Take the email from contacts whose address moved to another contact.
UPDATE contacts c SET email = NULL, email_domain = NULL, updated_at = :updated_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[]) AS l (org_id, id)
WHERE c.org_id = l.org_id AND c.id = l.id;

-- fill_contacts --
-- Give contacts the identifiers they gained; a null leaves the column as it is.
UPDATE contacts c
SET email = coalesce(f.email, c.email), email_domain = coalesce(f.email_domain, c.email_domain),
    wallet_address = coalesce(f.wallet_address, c.wallet_address), wallet_raw = coalesce(f.wallet_raw, c.wallet_raw),
    external_id = coalesce(f.external_id, c.external_id), updated_at = :updated_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :emails ::text[], :email_domains ::text[], :wallets ::text[],
            :raw_wallets ::text[], :external_ids ::text[])
    AS f (org_id, id, email, email_domain, wallet_address, wallet_raw, external_id)
WHERE c.org_id = f.org_id AND c.id = f.id;

-- merge_attributes --
-- Merge attributes shallowly, last write wins; contacts that have them already are not written, nor those that were erased
-- meanwhile.
-- A contact has at most 1,000 attributes and 256 KB of them: past that the value is null, which the column refuses. In 8,000 bytes
-- of text are fewer (`"ab": 1, ` takes 9, and there are some hundred shorter names): most rows need no counting.
UPDATE contacts c SET updated_at = :updated_at ::timestamptz, attributes = CASE
    WHEN octet_length(c.attributes::text) + octet_length(m.attributes::text) < 8000 THEN c.attributes || m.attributes
    WHEN octet_length((c.attributes || m.attributes)::text) <= 262144
        AND (SELECT count(*) FROM jsonb_object_keys(c.attributes || m.attributes)) <= 1000 THEN c.attributes || m.attributes
    END
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :attributes ::jsonb[]) AS m (org_id, id, attributes)
WHERE c.org_id = m.org_id AND c.id = m.id AND c.erased_at IS NULL AND NOT c.attributes @> m.attributes;

-- own_identifiers --
-- Record who owns identifiers from now on; one that belonged to another contact moves.
INSERT INTO identities (org_id, kind, value_digest, contact_id, created_at)
SELECT org_id, kind, digest, contact_id, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :kinds ::smallint[], :digests ::uuid[], :contact_ids ::uuid[])
    AS o (org_id, kind, digest, contact_id)
ON CONFLICT (org_id, kind, value_digest) DO UPDATE SET contact_id = excluded.contact_id;

-- add_conflicts --
-- Keep every identifier that pointed elsewhere.
INSERT INTO identity_conflicts (org_id, id, event_id, contact_id, other_contact_id, kind, value_digest, outcome, created_at)
SELECT org_id, id, event_id, contact_id, other_contact_id, kind, digest, outcome, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :event_ids ::uuid[], :contact_ids ::uuid[], :other_contact_ids ::uuid[],
            :kinds ::smallint[], :digests ::uuid[], :outcomes ::text[])
    AS c (org_id, id, event_id, contact_id, other_contact_id, kind, digest, outcome)
RETURNING true;

-- add_events --
-- Store events; moments are microseconds since the epoch. Payloads come as one text with record separators between them: no JSON
-- text contains one, and nothing need be quoted. The number of the transaction is made once, not per row.
INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
                    wallet_address, email, external_id, stored_in)
SELECT org_id, id, contact_id, event, timestamptz 'epoch' + occurred_us * interval '1 microsecond',
       :created_at ::timestamptz, payload::jsonb, idempotency_key, wallet_address, email, external_id,
       (SELECT pg_current_xact_id()::text::bigint + :added ::bigint)
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :contact_ids ::uuid[], :events ::text[], :occurred_us ::bigint[],
            string_to_array(:payloads, chr(30)), :idempotency_keys ::text[], :wallets ::text[], :emails ::text[], :external_ids ::text[])
    AS e (org_id, id, contact_id, event, occurred_us, payload, idempotency_key, wallet_address, email, external_id)
RETURNING true;

-- add_entries --
-- One entry per automation and event.
INSERT INTO entries (org_id, id, automation_id, automation_version, stint, event_id, event_created_at, contact_id, request_id,
                     state, due_at, created_at, updated_at)
SELECT org_id, id, automation_id, version, stint, event_id, :created_at ::timestamptz, contact_id, request_id, 'pending',
       :created_at ::timestamptz, :created_at ::timestamptz, :created_at ::timestamptz
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :automation_ids ::uuid[], :versions ::integer[], :stints ::integer[],
            :event_ids ::uuid[], :contact_ids ::uuid[], :request_ids ::text[])
    AS e (org_id, id, automation_id, version, stint, event_id, contact_id, request_id)
ON CONFLICT (org_id, automation_id, event_id) DO NOTHING;

-- wake_waiting --
-- Let entries that wait for these events of their contacts look at once, and tell the engines; the contacts' locks are held.
-- Found first, contact by contact, then made due: a plan that joins both at once may go through all entries that wait.
WITH w AS MATERIALIZED (
    SELECT DISTINCT * FROM unnest(:org_ids ::bigint[], :contact_ids ::uuid[], :events ::text[]) AS w (org_id, contact_id, event)
), found AS MATERIALIZED (
    SELECT f.* FROM w CROSS JOIN LATERAL (
        SELECT e.org_id, e.id FROM entries e
        WHERE e.org_id = w.org_id AND e.contact_id = w.contact_id AND e.state = 'waiting' AND e.awaits IS NOT NULL
            AND w.event = ANY(e.awaits)
        ORDER BY e.id    -- as the index on those that wait has them, and no other
    ) AS f
), woken AS (
    UPDATE entries e SET due_at = :at ::timestamptz, updated_at = :at ::timestamptz
    FROM found
    WHERE e.org_id = found.org_id AND e.id = found.id AND e.state || '' = 'waiting'    -- by the key, not by a lane
        AND greatest(e.due_at, e.due_at) > :at ::timestamptz
    RETURNING e.id
)
SELECT pg_notify('workbench_entries', '') WHERE EXISTS (SELECT FROM woken);

-- add_dry_runs --
-- Keep dry runs for the debugger; a key seen before in a dry run is not returned.
INSERT INTO dry_runs (org_id, key_digest, id, event, contact_id, occurred_at, created_at, payload, idempotency_key, matched)
SELECT org_id, key_digest, id, event, contact_id, timestamptz 'epoch' + occurred_us * interval '1 microsecond',
       :created_at ::timestamptz, payload::jsonb, idempotency_key, matched
FROM unnest(:org_ids ::bigint[], :key_digests ::uuid[], :ids ::uuid[], :events ::text[], :contact_ids ::uuid[],
            :occurred_us ::bigint[], string_to_array(:payloads, chr(30)), :idempotency_keys ::text[], :matched ::integer[])
    AS d (org_id, key_digest, id, event, contact_id, occurred_us, payload, idempotency_key, matched)
ON CONFLICT (org_id, key_digest) DO NOTHING
RETURNING id::text;
