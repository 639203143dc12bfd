-- What a rotation of the secret changes: blind indexes, whose first digit is their generation, and sealed emails, whose prefix is.
-- Page by page, so that nobody waits long; a page that was done already is not found again, or changes nothing.

-- list_organizations --
-- Everybody.
SELECT id FROM organizations ORDER BY id;

-- other_generations --
-- How many connections are of processes that hold the secrets in another way than we do; `mark` is how ours end.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, :name) AND right(application_name, length(:mark)) <> :mark;

-- find_identities --
-- The next identifiers with an index between two, held.
SELECT value_digest::text FROM identities
WHERE org_id = :org_id AND kind = :kind AND value_digest > :after ::uuid AND value_digest < :end ::uuid
ORDER BY value_digest LIMIT :most FOR UPDATE;

-- raise_identities --
-- Let identifiers be found by a later index, too; `leads`: by the former one they are looked up, so it is right where both differ.
INSERT INTO identities (org_id, kind, value_digest, contact_id, created_at)
SELECT i.org_id, i.kind, r.risen, i.contact_id, i.created_at
FROM unnest(:digests ::uuid[], :risen ::uuid[]) AS r (digest, risen)
JOIN identities i ON i.org_id = :org_id AND i.kind = :kind AND i.value_digest = r.digest
ORDER BY r.risen
ON CONFLICT (org_id, kind, value_digest) DO UPDATE SET contact_id = excluded.contact_id
    WHERE :leads ::boolean AND identities.contact_id <> excluded.contact_id;

-- drop_identities --
-- Find identifiers by these indexes no longer.
DELETE FROM identities WHERE org_id = :org_id AND kind = :kind AND value_digest = ANY (:digests ::uuid[]);

-- find_suppressions --
-- The next suppressed addresses with an index between two, held.
SELECT address_digest::text FROM suppressions
WHERE org_id = :org_id AND channel = :kind AND address_digest > :after ::uuid AND address_digest < :end ::uuid
ORDER BY address_digest LIMIT :most FOR UPDATE;

-- raise_suppressions --
-- Let suppressed addresses be found by a later index, too.
INSERT INTO suppressions (org_id, channel, address_digest, reason, created_at)
SELECT s.org_id, s.channel, r.risen, s.reason, s.created_at
FROM unnest(:digests ::uuid[], :risen ::uuid[]) AS r (digest, risen)
JOIN suppressions s ON s.org_id = :org_id AND s.channel = :kind AND s.address_digest = r.digest
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- drop_suppressions --
-- Find suppressed addresses by these indexes no longer.
DELETE FROM suppressions WHERE org_id = :org_id AND channel = :kind AND address_digest = ANY (:digests ::uuid[]);

-- find_endpoints --
-- The next closed webhook addresses with an index between two, held.
SELECT url_digest::text FROM closed_endpoints
WHERE org_id = :org_id AND :kind = 'webhook' AND url_digest > :after ::uuid AND url_digest < :end ::uuid
ORDER BY url_digest LIMIT :most FOR UPDATE;

-- raise_endpoints --
-- Let closed webhook addresses be found by a later index, too.
INSERT INTO closed_endpoints (org_id, url_digest, host, closed_at)
SELECT c.org_id, r.risen, c.host, c.closed_at
FROM unnest(:digests ::uuid[], :risen ::uuid[]) AS r (digest, risen)
JOIN closed_endpoints c ON c.org_id = :org_id AND :kind = 'webhook' AND c.url_digest = r.digest
ON CONFLICT (org_id, url_digest) DO NOTHING;

-- drop_endpoints --
-- Find closed webhook addresses by these indexes no longer.
DELETE FROM closed_endpoints WHERE org_id = :org_id AND :kind = 'webhook' AND url_digest = ANY (:digests ::uuid[]);

-- find_conflicts --
-- The next conflicts whose index is below one.
SELECT id::text, value_digest::text FROM identity_conflicts
WHERE org_id = :org_id AND id > :after ::uuid AND value_digest < :end ::uuid ORDER BY id LIMIT :most;

-- change_conflicts --
-- Give conflicts a later index.
UPDATE identity_conflicts c SET value_digest = r.new ::uuid
FROM unnest(:ids ::uuid[], :new ::text[]) AS r (id, new) WHERE c.org_id = :org_id AND c.id = r.id;

-- find_contacts --
-- The next contacts whose email is not sealed with the secret in use.
SELECT id::text, email FROM contacts
WHERE org_id = :org_id AND id > :after ::uuid AND NOT starts_with(email, :prefix) ORDER BY id LIMIT :most;

-- change_contacts --
-- Seal emails anew that are still what they were.
UPDATE contacts c SET email = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new) WHERE c.org_id = :org_id AND c.id = r.id AND c.email = r.old;

-- find_events --
-- The next events whose email is not sealed with the secret in use.
SELECT id::text, email FROM events
WHERE org_id = :org_id AND id > :after ::uuid AND NOT starts_with(email, :prefix) ORDER BY id LIMIT :most;

-- change_events --
-- Seal emails anew that are still what they were.
UPDATE events e SET email = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new) WHERE e.org_id = :org_id AND e.id = r.id AND e.email = r.old;

-- find_messages --
-- The next messages whose address is not sealed with the secret in use.
SELECT id::text, recipient FROM messages
WHERE org_id = :org_id AND id > :after ::uuid AND channel = 'email' AND NOT starts_with(recipient, :prefix) ORDER BY id LIMIT :most;

-- change_messages --
-- Seal addresses anew that are still what they were.
UPDATE messages m SET recipient = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new)
WHERE m.org_id = :org_id AND m.id = r.id AND m.recipient = r.old;

-- find_merges --
-- The next merges: what was gained, and the identifiers that moved; held.
SELECT id::text, gained, identities FROM contact_merges
WHERE org_id = :org_id AND id > :after ::uuid ORDER BY id LIMIT :most FOR UPDATE;

-- change_merge --
-- Write both anew.
UPDATE contact_merges SET gained = :gained ::jsonb, identities = :identities ::jsonb WHERE org_id = :org_id AND id = :id ::uuid;

-- find_segments --
-- The values of segments' queries, held.
SELECT id::text, params FROM segments WHERE org_id = :org_id AND params IS NOT NULL ORDER BY id FOR UPDATE;

-- change_segment --
-- Write the values anew.
UPDATE segments SET params = :params ::jsonb WHERE org_id = :org_id AND id = :id ::uuid;

-- find_webhook_secrets --
-- What an organization's webhooks are signed with, sealed, and held.
SELECT secret, previous FROM webhook_secrets WHERE org_id = :org_id FOR UPDATE;

-- change_webhook_secrets --
-- Write them anew.
UPDATE webhook_secrets SET secret = :secret, previous = :previous WHERE org_id = :org_id;

-- find_key_hashes --
-- The hashes of an organization's API keys.
SELECT id::text, key_hash FROM api_keys WHERE org_id = :org_id ORDER BY id;

-- change_key_hash --
-- Find a key by a later hash.
UPDATE api_keys SET key_hash = :key_hash WHERE org_id = :org_id AND id = :id ::uuid;
