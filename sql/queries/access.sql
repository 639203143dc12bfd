-- Organizations, their API keys, and the rows that a rotation of the installation's secret rewrites.

-- Organizations ----------------------------------------------------------------------------------------------------

-- insert_organization --
-- Create an organization; no row if the name is taken.
INSERT INTO organizations (name, created_at)
VALUES (:name, :created_at)
ON CONFLICT (name) DO NOTHING
RETURNING id;

-- find_organization --
-- An organization's id by its name.
SELECT id FROM organizations WHERE name = :name;

-- find_timezone --
-- The time zone of an organization.
SELECT timezone FROM organizations WHERE id = :org_id;

-- set_timezone --
-- Set the time zone of an organization.
UPDATE organizations SET timezone = :timezone WHERE id = :org_id;

-- list_organizations --
-- All organizations.
SELECT id FROM organizations ORDER BY id;

-- list_organization_names --
-- The names of all organizations, by id.
SELECT id, name FROM organizations ORDER BY id;

-- has_organizations --
-- Whether the database has an organization.
SELECT true FROM organizations LIMIT 1;

-- find_fingerprints --
-- The fingerprints of the secrets that belong to this database; no row if it has never been used with one.
SELECT unnest(fingerprints) FROM root_secrets;

-- insert_fingerprint --
-- Store the first fingerprint, unless another process stored its own first.
INSERT INTO root_secrets (fingerprints) VALUES (ARRAY[:fingerprint]) ON CONFLICT DO NOTHING;

-- sample_contacts --
-- The identifiers of a few contacts, to try a secret on: the oldest ones of the oldest organization, because a process
-- with a foreign secret can only have created later ones. Ids are in the order of `created_at`, which has no index
-- (`ORDER BY id` would order by the text, which has none either).
SELECT org_id, id::text, email, wallet_address, external_id FROM contacts
WHERE erased_at IS NULL AND merged_into IS NULL AND coalesce(email, wallet_address, external_id) IS NOT NULL
ORDER BY org_id, contacts.id LIMIT 20;

-- set_fingerprints --
-- Replace the fingerprints.
INSERT INTO root_secrets (fingerprints) VALUES (:fingerprints)
ON CONFLICT (is_only_row) DO UPDATE SET fingerprints = excluded.fingerprints;

-- API keys ---------------------------------------------------------------------------------------------------------
-- A request presents a key; its hash is unique, so the key names its organization.

-- insert_key --
-- Store a new key: its hash, and of the key itself only the prefix and the last four characters that help people
-- recognise it.
INSERT INTO api_keys (org_id, id, kind, key_hash, prefix, last4, name, scopes, created_at, strict)
VALUES (:org_id, :id, :kind, :key_hash, :prefix, :last4, :name, :scopes, :created_at, :strict);

-- find_keys --
-- The keys with one of the given hashes, valid or not; the caller checks expiry and revocation.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.strict
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.key_hash = ANY(:key_hashes);

-- find_key_by_id --
-- One key by its id, for operators, who do not know the organization's id.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.strict
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.id = :key_id;

-- find_organization_key --
-- One key of an organization by its id.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.strict
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.org_id = :org_id AND k.id = :key_id;

-- list_keys --
-- All keys of an organization, oldest first.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.strict
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.org_id = :org_id
ORDER BY k.created_at, k.id;

-- expire_key --
-- Let a key expire at a moment, or at its own earlier one.
UPDATE api_keys SET expires_at = LEAST(expires_at, :expires_at) WHERE org_id = :org_id AND id = :key_id;

-- revoke_key --
-- Revoke a key; the first revocation stays on record.
UPDATE api_keys SET revoked_at = COALESCE(revoked_at, :revoked_at) WHERE org_id = :org_id AND id = :key_id;

-- set_strict --
-- Let a key refuse events with unknown fields, or accept them.
UPDATE api_keys SET strict = :strict WHERE org_id = :org_id AND id = :key_id;

-- touch_key --
-- Record a use of a key, at most once a minute however many processes see it.
UPDATE api_keys SET last_used_at = :used_at
WHERE org_id = :org_id AND id = :key_id AND (last_used_at IS NULL OR last_used_at < :used_at ::timestamptz - INTERVAL '1 minute');

-- Rotation of the secret -------------------------------------------------------------------------------------------
-- A rotation replaces blind indexes (the first hexadecimal digit is the generation of the secret) and sealed emails
-- (the prefix is the generation). It works page by page, so no transaction waits long. A page that was done before is not
-- found again or changes nothing.

-- count_other_generations --
-- The number of connections of processes with another state of the secrets; the application
-- names of processes with our state end with `mark`.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, :name) AND right(application_name, length(:mark ::text)) <> :mark;

-- find_identities --
-- The next identifiers with an index in a range, locked.
SELECT value_digest::text FROM identities
WHERE org_id = :org_id AND kind = :kind AND value_digest > :after ::uuid AND value_digest < :end ::uuid
ORDER BY value_digest LIMIT :limit FOR UPDATE;

-- rotate_identities --
-- Add a later index to identifiers. `leads`: lookups use the earlier index, so its owner is right where the two
-- differ.
INSERT INTO identities (org_id, kind, value_digest, contact_id, created_at)
SELECT i.org_id, i.kind, r.later, i.contact_id, i.created_at
FROM unnest(:digests ::uuid[], :later ::uuid[]) AS r (digest, later)
JOIN identities i ON i.org_id = :org_id AND i.kind = :kind AND i.value_digest = r.digest
ORDER BY r.later
ON CONFLICT (org_id, kind, value_digest) DO UPDATE SET contact_id = excluded.contact_id
    WHERE :leads ::boolean AND identities.contact_id <> excluded.contact_id;

-- drop_identities --
-- Remove these indexes of identifiers.
DELETE FROM identities WHERE org_id = :org_id AND kind = :kind AND value_digest = ANY (:digests ::uuid[]);

-- find_suppressions --
-- The next suppressed addresses with an index in a range, locked.
SELECT address_digest::text FROM suppressions
WHERE org_id = :org_id AND channel = :kind AND address_digest > :after ::uuid AND address_digest < :end ::uuid
ORDER BY address_digest LIMIT :limit FOR UPDATE;

-- rotate_suppressions --
-- Add a later index to suppressed addresses.
INSERT INTO suppressions (org_id, channel, address_digest, reason, cause, created_at)
SELECT s.org_id, s.channel, r.later, s.reason, s.cause, s.created_at
FROM unnest(:digests ::uuid[], :later ::uuid[]) AS r (digest, later)
JOIN suppressions s ON s.org_id = :org_id AND s.channel = :kind AND s.address_digest = r.digest
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- drop_suppressions --
-- Remove these indexes of suppressed addresses.
DELETE FROM suppressions WHERE org_id = :org_id AND channel = :kind AND address_digest = ANY (:digests ::uuid[]);

-- find_endpoints --
-- The next closed webhook endpoints with an index in a range, locked.
SELECT url_digest::text FROM closed_endpoints
WHERE org_id = :org_id AND :kind = 'webhook' AND url_digest > :after ::uuid AND url_digest < :end ::uuid
ORDER BY url_digest LIMIT :limit FOR UPDATE;

-- rotate_endpoints --
-- Add a later index to closed webhook endpoints.
INSERT INTO closed_endpoints (org_id, url_digest, host, closed_at)
SELECT c.org_id, r.later, c.host, c.closed_at
FROM unnest(:digests ::uuid[], :later ::uuid[]) AS r (digest, later)
JOIN closed_endpoints c ON c.org_id = :org_id AND :kind = 'webhook' AND c.url_digest = r.digest
ON CONFLICT (org_id, url_digest) DO NOTHING;

-- drop_endpoints --
-- Remove these indexes of closed webhook endpoints.
DELETE FROM closed_endpoints WHERE org_id = :org_id AND :kind = 'webhook' AND url_digest = ANY (:digests ::uuid[]);

-- find_conflicts --
-- The next identity conflicts with an index below a limit.
SELECT id::text, value_digest::text FROM identity_conflicts
WHERE org_id = :org_id AND id > :after ::uuid AND value_digest < :end ::uuid ORDER BY id LIMIT :limit;

-- change_conflicts --
-- Write the later indexes of conflicts.
UPDATE identity_conflicts c SET value_digest = r.new ::uuid
FROM unnest(:ids ::uuid[], :new ::text[]) AS r (id, new) WHERE c.org_id = :org_id AND c.id = r.id;

-- find_contacts --
-- The next contacts with an email that is not sealed with the current secret.
SELECT id::text, email FROM contacts
WHERE org_id = :org_id AND id > :after ::uuid AND NOT starts_with(email, :prefix) ORDER BY id LIMIT :limit;

-- change_contacts --
-- Write resealed emails, where they did not change meanwhile.
UPDATE contacts c SET email = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new) WHERE c.org_id = :org_id AND c.id = r.id AND c.email = r.old;

-- find_events --
-- The next events with an email that is not sealed with the current secret.
SELECT id::text, email FROM events
WHERE org_id = :org_id AND id > :after ::uuid AND NOT starts_with(email, :prefix) ORDER BY id LIMIT :limit;

-- change_events --
-- Write resealed emails, where they did not change meanwhile.
UPDATE events e SET email = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new) WHERE e.org_id = :org_id AND e.id = r.id AND e.email = r.old;

-- find_messages --
-- The next messages on channels with sealed addresses, with a recipient that is not sealed with the current secret.
SELECT id::text, recipient FROM messages
WHERE org_id = :org_id AND id > :after ::uuid AND channel = ANY (:channels) AND NOT starts_with(recipient, :prefix) ORDER BY id LIMIT :limit;

-- change_messages --
-- Write resealed recipients of messages that did not change meanwhile.
UPDATE messages m SET recipient = r.new
FROM unnest(:ids ::uuid[], :old ::text[], :new ::text[]) AS r (id, old, new)
WHERE m.org_id = :org_id AND m.id = r.id AND m.recipient = r.old;

-- find_changed_emails --
-- The changes of emails of the next contacts.
SELECT contact_id::text, changed_at, old::text, new::text FROM contact_changes
WHERE org_id = :org_id AND field = 'email' AND contact_id IN (
        SELECT DISTINCT contact_id FROM contact_changes
        WHERE org_id = :org_id AND field = 'email' AND contact_id > :after ::uuid ORDER BY contact_id LIMIT :limit)
ORDER BY contact_id;

-- write_changed_emails --
-- Write resealed emails of changes.
UPDATE contact_changes k SET old = r.old, new = r.new
FROM unnest(:ids ::uuid[], :moments ::timestamptz[], :old ::jsonb[], :new ::jsonb[]) AS r (id, moment, old, new)
WHERE k.org_id = :org_id AND k.contact_id = r.id AND k.changed_at = r.moment AND k.field = 'email';

-- find_merges --
-- The next merges with what was gained and the identifiers that moved, locked.
SELECT id::text, gained, identities FROM contact_merges
WHERE org_id = :org_id AND id > :after ::uuid ORDER BY id LIMIT :limit FOR UPDATE;

-- change_merge --
-- Write the resealed values of a merge.
UPDATE contact_merges SET gained = :gained ::jsonb, identities = :identities ::jsonb WHERE org_id = :org_id AND id = :id ::uuid;

-- forget_watermarks --
-- Let the next refresh of each segment read everything: resealed emails are no change that increments see.
UPDATE segments SET watermark = NULL WHERE org_id = :org_id AND watermark IS NOT NULL;

-- find_segments --
-- The parameters of segments' queries, locked.
SELECT id::text, params FROM segments WHERE org_id = :org_id AND params IS NOT NULL ORDER BY id FOR UPDATE;

-- change_segment --
-- Write the resealed parameters.
UPDATE segments SET params = :params ::jsonb WHERE org_id = :org_id AND id = :id ::uuid;

-- find_page_schedules --
-- The recipients of scheduled pages, and the values of their queries, locked.
SELECT id::text, recipients, sections FROM page_schedules WHERE org_id = :org_id ORDER BY id FOR UPDATE;

-- change_page_schedule --
-- Write the resealed emails.
UPDATE page_schedules SET recipients = :recipients, sections = :sections ::jsonb WHERE org_id = :org_id AND id = :id ::uuid;

-- find_webhook_secrets --
-- The sealed secrets that sign an organization's webhooks, locked.
SELECT secret, previous FROM webhook_secrets WHERE org_id = :org_id FOR UPDATE;

-- change_webhook_secrets --
-- Write the resealed secrets.
UPDATE webhook_secrets SET secret = :secret, previous = :previous WHERE org_id = :org_id;

-- find_connections --
-- The sealed secrets of connections, locked.
SELECT name, secrets FROM connections WHERE org_id = :org_id ORDER BY name FOR UPDATE;

-- change_connection --
-- Write the resealed secrets.
UPDATE connections SET secrets = :secrets WHERE org_id = :org_id AND name = :name;

-- find_key_hashes --
-- The hashes of an organization's API keys.
SELECT id::text, key_hash FROM api_keys WHERE org_id = :org_id ORDER BY id;

-- change_key_hash --
-- Write the later hash of a key.
UPDATE api_keys SET key_hash = :key_hash WHERE org_id = :org_id AND id = :id ::uuid;
