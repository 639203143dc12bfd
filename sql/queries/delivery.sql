-- What leaves the house: who gets no more of it, what webhooks are signed with, and which of their endpoints are closed.

-- suppress --
-- Send an address no more messages of a channel; the first reason is the one that stays.
INSERT INTO suppressions (org_id, channel, address_digest, reason, created_at)
SELECT :org_id, :channel, digest, :reason, :created_at FROM unnest(CAST(:address_digests AS uuid[])) AS digest
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- suppressed --
-- Those of a list of addresses, of any organizations, that get no more messages of a channel.
SELECT s.org_id, s.address_digest
FROM unnest(CAST(:org_ids AS bigint[]), CAST(:address_digests AS uuid[])) AS asked (org_id, address_digest)
JOIN suppressions s ON s.org_id = asked.org_id AND s.channel = :channel AND s.address_digest = asked.address_digest;

-- insert_webhook_secret --
-- Give an organization its first secret, unless it has one.
INSERT INTO webhook_secrets (org_id, secret, created_at)
VALUES (:org_id, :secret, :created_at)
ON CONFLICT (org_id) DO NOTHING;

-- roll_webhook_secret --
-- Replace the secret; the one before signs, too, until the given moment.
INSERT INTO webhook_secrets (org_id, secret, created_at)
VALUES (:org_id, :secret, :created_at)
ON CONFLICT (org_id) DO UPDATE
SET secret = excluded.secret, created_at = excluded.created_at,
    previous = webhook_secrets.secret, previous_until = :previous_until;

-- webhook_secrets --
-- The secrets of organizations: the current one, and the one before while it signs.
SELECT org_id, secret, CASE WHEN previous_until > :now THEN previous END AS previous
FROM webhook_secrets
WHERE org_id = ANY(CAST(:org_ids AS bigint[]));

-- close_endpoint --
-- Send nothing more to a webhook address.
INSERT INTO closed_endpoints (org_id, url_digest, host, closed_at)
SELECT :org_id, digest, :host, :closed_at FROM unnest(CAST(:url_digests AS uuid[])) AS digest
ON CONFLICT (org_id, url_digest) DO NOTHING;

-- open_endpoint --
-- Send to a webhook address again; a row when it was closed.
DELETE FROM closed_endpoints
WHERE org_id = :org_id AND url_digest = ANY (CAST(:url_digests AS uuid[]))
RETURNING org_id;

-- closed_endpoints --
-- Those of a list of webhook addresses, of any organizations, that are closed.
SELECT c.org_id, c.url_digest
FROM unnest(CAST(:org_ids AS bigint[]), CAST(:url_digests AS uuid[])) AS asked (org_id, url_digest)
JOIN closed_endpoints c ON c.org_id = asked.org_id AND c.url_digest = asked.url_digest;
