-- In-app messages: signing in, what waits for wallets, and what they have acknowledged.

-- list_origins --
-- The pages that may ask for an organization's in-app messages.
SELECT origins FROM organizations WHERE id = :org_id;

-- add_origin --
-- Let a page ask.
UPDATE organizations SET origins = origins || :origin ::text WHERE id = :org_id AND :origin ::text <> ALL (origins);

-- remove_origin --
-- Let a page ask no longer.
UPDATE organizations SET origins = array_remove(origins, :origin ::text) WHERE id = :org_id AND :origin ::text = ANY (origins);

-- add_challenge --
-- Remember what a wallet was asked to sign.
INSERT INTO inapp_challenges (org_id, nonce, wallet_address, key_id, origin, chain_id, expires_at)
VALUES (:org_id, :nonce, :wallet, :key_id, :origin, :chain_id, :expires_at);

-- forget_challenges --
-- Delete challenges that nobody answered in time, the oldest first.
DELETE FROM inapp_challenges WHERE org_id = :org_id AND nonce IN (
    SELECT nonce FROM inapp_challenges WHERE org_id = :org_id AND expires_at < :now ORDER BY expires_at LIMIT :most);

-- take_challenge --
-- Use up a challenge: whoever deletes the row has answered it, and nobody else can.
DELETE FROM inapp_challenges WHERE org_id = :org_id AND nonce = :nonce
RETURNING wallet_address, key_id, origin, chain_id, expires_at;

-- standing_keys --
-- Those of the keys that are still valid, with the origins of their organization.
SELECT k.org_id, k.id, o.origins
FROM unnest(:org_ids ::bigint[], :key_ids ::uuid[]) AS s (org_id, key_id)
JOIN api_keys k ON k.org_id = s.org_id AND k.id = s.key_id
JOIN organizations o ON o.id = k.org_id
WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > :now);

-- read_inboxes --
-- What waits for wallets of one organization, tests among it, oldest first, at most so much for each; without what is on its way to them.
SELECT k.wallet, m.id::text, m.subject, m.body, m.extra, m.created_at
FROM unnest(:wallets ::text[]) WITH ORDINALITY AS k (wallet, position)
CROSS JOIN LATERAL (
    (SELECT w.id, w.subject, w.body, w.extra, w.created_at FROM messages w
     WHERE w.org_id = :org_id ::bigint AND w.wallet_address = k.wallet AND w.channel = 'inapp' AND w.delivered_at IS NULL
           AND w.status = 'sent' AND w.id <> ALL (:under_way ::uuid[])
     ORDER BY w.created_at, w.id LIMIT :most ::integer)
    UNION ALL
    (SELECT t.id, t.title, t.body, t.extra, t.created_at FROM test_pushes t
     WHERE t.org_id = :org_id ::bigint AND t.wallet_address = k.wallet AND t.id <> ALL (:under_way ::uuid[])
     ORDER BY t.created_at, t.id LIMIT :most ::integer)
    ORDER BY created_at, id LIMIT :most ::integer
) m
ORDER BY k.position, m.created_at, m.id;

-- acknowledge --
-- Note that wallets have received messages of theirs; the first time counts. A test is done with.
WITH tested AS (
    DELETE FROM test_pushes t
    USING unnest(:org_ids ::bigint[], :ids ::uuid[], :wallets ::text[]) AS k (org_id, id, wallet)
    WHERE t.org_id = k.org_id AND t.id = k.id AND t.wallet_address = k.wallet
), acknowledged AS (
    UPDATE messages m SET status = 'delivered', delivered_at = :now
    FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :wallets ::text[]) AS k (org_id, id, wallet)
    WHERE m.org_id = k.org_id AND m.id = k.id AND m.wallet_address = k.wallet AND m.channel = 'inapp'
          AND m.delivered_at IS NULL
    RETURNING m.org_id, m.id
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel)
SELECT org_id, :now ::timestamptz, id, 'delivered', 'inapp' FROM acknowledged
RETURNING true;

-- find_inbox_channel --
-- The name of the channel on which waiting messages are announced.
SELECT channel FROM workbench.channels WHERE purpose = 'inbox';

-- announce_messages --
-- Tell every API process, when this transaction commits, which wallets have something waiting: marks, no addresses, as many
-- in one notification as its 8,000 bytes hold.
SELECT pg_notify((SELECT channel FROM channels WHERE purpose = 'inbox'), concat(:org_id ::bigint, ' ', string_agg(mark, ' ')))
FROM (
    SELECT mark, row_number() OVER () / 400 AS part
    FROM (SELECT DISTINCT left(md5(wallet), 16) AS mark FROM unnest(:wallets ::text[]) AS wallet) AS marks
) AS parts
GROUP BY part;
