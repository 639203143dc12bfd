-- Organizations and API keys. Keys are found by the hash of the key, which names its organization.

-- insert_organization --
-- Create an organization; no row when the name is taken.
INSERT INTO organizations (name, created_at)
VALUES (:name, :created_at)
ON CONFLICT (name) DO NOTHING
RETURNING id;

-- find_organization --
-- The id of an organization by its name.
SELECT id FROM organizations WHERE name = :name;

-- insert_key --
-- Keep a new API key: its hash, and of the key itself only what helps a person to recognise it.
INSERT INTO api_keys (org_id, id, kind, key_hash, prefix, last4, name, scopes, created_at)
VALUES (:org_id, :id, :kind, :key_hash, :prefix, :last4, :name, :scopes, :created_at);

-- find_keys --
-- Every key among the given hashes, valid or not; the caller judges time.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.key_hash = ANY(:key_hashes);

-- find_key_by_id --
-- One key by its id, for operators, who know no organization id.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.id = :id;

-- find_key_of --
-- One key of an organization by its id.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.org_id = :org_id AND k.id = :id;

-- list_keys --
-- Every key of an organization, oldest first.
SELECT k.org_id, o.name AS org_name, k.id, k.kind, k.key_hash, k.prefix, k.last4, k.name, k.scopes,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at
FROM api_keys k
JOIN organizations o ON o.id = k.org_id
WHERE k.org_id = :org_id
ORDER BY k.created_at, k.id;

-- expire_key --
-- Let a key end at a moment, or at its own earlier one.
UPDATE api_keys SET expires_at = LEAST(expires_at, :expires_at) WHERE org_id = :org_id AND id = :id;

-- revoke_key --
-- End a key now; the first revocation is the one that stays on record.
UPDATE api_keys SET revoked_at = COALESCE(revoked_at, :revoked_at) WHERE org_id = :org_id AND id = :id;

-- touch_key --
-- Remember that a key was used, at most once a minute however many processes saw it.
UPDATE api_keys SET last_used_at = :used_at
WHERE org_id = :org_id AND id = :id AND (last_used_at IS NULL OR last_used_at < :used_at ::timestamptz - INTERVAL '1 minute');
