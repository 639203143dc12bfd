-- Messages: outgoing emails and webhooks, in-app inboxes, suppressions, webhook secrets and endpoints, test sends,
-- usage.

-- Outgoing emails and webhooks -------------------------------------------------------------------------------------
-- A row is written before each effect. Its id never changes, and every attempt sends the text that was stored first.

-- add_outgoing --
-- Store messages to send; a message that is stored already stays as it is.
INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, recipient, subject, body,
                      html, track_clicks, topic, created_at)
SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, channel, 'queued', recipient, subject, body, html,
       track_clicks, topic, :at ::timestamptz
FROM unnest(:id ::uuid[], :contact_id ::uuid[], :automation_id ::uuid[], :entry_id ::uuid[], :node_id ::text[],
            :channel ::text[], :recipient ::text[], :subject ::text[], :body ::text[], :html ::boolean[],
            :track_clicks ::boolean[], :topic ::text[])
    AS m (id, contact_id, automation_id, entry_id, node_id, channel, recipient, subject, body, html, track_clicks, topic)
ON CONFLICT (org_id, id) DO NOTHING;

-- claim_outgoing --
-- Start sending messages as they are stored, and read whether their contacts have opted out or declined the topic;
-- messages that were sent before are not returned.
UPDATE messages m
SET status = 'sending', lease_token = k.token, in_doubt = m.in_doubt OR m.status IN ('sending', 'unknown')
FROM unnest(:id ::uuid[], :token ::bigint[]) AS k (id, token)
WHERE m.org_id = :org_id ::bigint AND m.id = k.id AND m.status IN ('queued', 'sending', 'unknown', 'failed')
RETURNING m.id, m.contact_id, m.channel, m.recipient, m.subject, m.body, m.html, m.track_clicks, m.topic, m.created_at, EXISTS (
    SELECT FROM contacts c WHERE c.org_id = :org_id ::bigint AND c.id = m.contact_id AND m.channel = ANY (c.opted_out)) AS opted_out,
    m.topic IS NOT NULL AND EXISTS (
        SELECT FROM declined_topics d
        WHERE d.org_id = :org_id ::bigint AND d.contact_id = m.contact_id AND d.topic = m.topic) AS declined;

-- settle_outgoing --
-- Record the result of an attempt, unless another claim has taken the message since. A null outcome: nothing was
-- attempted. A message that failed, or is not to be sent any more, becomes `unknown` if an earlier attempt may have
-- arrived.
WITH settled AS (
    UPDATE messages
    SET status = CASE WHEN in_doubt AND :status ::text IN ('failed', 'skipped') THEN 'unknown' ELSE :status ::text END,
        sent_at = CASE WHEN :status ::text = 'sent' THEN :at ::timestamptz END
    WHERE org_id = :org_id ::bigint AND id = :message_id ::uuid AND lease_token = :token ::bigint
    RETURNING id, channel, status
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, id, CASE status WHEN 'unknown' THEN status ELSE :outcome ::text END, channel, :reason ::text
FROM settled
WHERE :outcome ::text IS NOT NULL
RETURNING true;

-- abandon_outgoing --
-- Give up the unsent messages of entries that have ended: failed if the entry is dead, otherwise skipped. A message
-- that was being sent when a worker stopped may have arrived.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, entry_id FROM unnest(:entry_ids ::uuid[]) AS entry_id    -- by key: see entries.sql
), abandoned AS (
    UPDATE messages m
    SET status = CASE WHEN m.in_doubt OR m.status = 'sending' THEN 'unknown' WHEN e.state = 'dead' THEN 'failed' ELSE 'skipped' END
    FROM k JOIN entries e ON e.org_id = k.org_id AND e.id = k.entry_id
    WHERE m.org_id = k.org_id AND m.entry_id = k.entry_id AND m.status IN ('queued', 'sending')
    RETURNING m.id, m.status, m.channel, e.outcome
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, id, status, channel, outcome FROM abandoned
RETURNING true;

-- add_skipped_messages --
-- Record messages that are not sent at all, without their texts; a message that waited for another attempt is
-- skipped now. One that was being sent when a worker stopped may have arrived.
WITH k AS (
    SELECT * FROM unnest(:id ::uuid[], :contact_id ::uuid[], :automation_id ::uuid[], :entry_id ::uuid[], :node_id ::text[],
                         :channel ::text[], :cause ::text[])
        AS k (id, contact_id, automation_id, entry_id, node_id, channel, cause)
), skipped AS (
    INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, created_at)
    SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, channel, 'skipped', :at ::timestamptz FROM k
    ON CONFLICT (org_id, id) DO UPDATE
        SET status = CASE WHEN messages.in_doubt OR messages.status = 'sending' THEN 'unknown' ELSE 'skipped' END
        WHERE messages.status IN ('queued', 'sending')
    RETURNING id, status
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, k.id, skipped.status, k.channel, k.cause
FROM skipped JOIN k ON k.id = skipped.id
RETURNING true;

-- Messages as users see them --------------------------------------------------------------------------------------

-- list_messages --
-- The messages of an entry, in order; skipped and erased messages have no text.
SELECT id, automation_id, entry_id, node_id, channel, status, wallet_address, recipient, subject, body, extra AS data, created_at,
       sent_at, delivered_at, html, track_clicks
FROM messages
WHERE org_id = :org_id AND entry_id = :entry_id
ORDER BY created_at, id;

-- find_message_contact --
-- A message, and the identifiers of its contact or of the one it was merged into; no row if that was erased or has none.
SELECT m.automation_id, m.node_id, m.recipient, s.wallet_address, s.email, s.external_id
FROM messages m
JOIN contacts c ON c.org_id = :org_id AND c.id = m.contact_id
JOIN contacts s ON s.org_id = :org_id AND s.id = coalesce(c.merged_into, c.id)
WHERE m.org_id = :org_id AND m.id = :message_id ::uuid AND s.erased_at IS NULL
    AND coalesce(s.wallet_address, s.email, s.external_id) IS NOT NULL;

-- In-app messages --------------------------------------------------------------------------------------------------

-- add_inapp_messages --
-- Store in-app messages. The id of a message never changes, so storing it twice changes nothing.
WITH new AS (
    INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, wallet_address,
                          subject, body, extra, created_at, sent_at)
    SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, 'inapp', 'sent', wallet_address, subject, body,
           extra, :at ::timestamptz, :at ::timestamptz
    FROM unnest(:id ::uuid[], :contact_id ::uuid[], :automation_id ::uuid[], :entry_id ::uuid[], :node_id ::text[],
                :wallet_address ::text[], :subject ::text[], :body ::text[], :data ::jsonb[])
        AS m (id, contact_id, automation_id, entry_id, node_id, wallet_address, subject, body, extra)
    ON CONFLICT (org_id, id) DO NOTHING
    RETURNING id
), noted AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel)
    SELECT :org_id ::bigint, :at ::timestamptz, id, 'sent', 'inapp' FROM new
    RETURNING true
)
SELECT id::text FROM new;

-- list_origins --
-- The web origins that may ask for an organization's in-app messages.
SELECT coalesce((SELECT origins FROM organizations WHERE id = :org_id), '{}');

-- add_origin --
-- Allow an origin.
UPDATE organizations SET origins = origins || :origin ::text WHERE id = :org_id AND :origin ::text <> ALL (origins);

-- remove_origin --
-- Disallow an origin.
UPDATE organizations SET origins = array_remove(origins, :origin ::text) WHERE id = :org_id AND :origin ::text = ANY (origins);

-- add_challenge --
-- Store the values that a wallet must sign.
INSERT INTO inapp_challenges (org_id, nonce, wallet_address, key_id, origin, chain_id, expires_at)
VALUES (:org_id, :nonce, :wallet, :key_id, :origin, :chain_id, :expires_at);

-- delete_expired_challenges --
-- Delete challenges that were not answered in time, oldest first.
DELETE FROM inapp_challenges WHERE org_id = :org_id AND nonce IN (
    SELECT nonce FROM inapp_challenges WHERE org_id = :org_id AND expires_at < :now ORDER BY expires_at LIMIT :limit);

-- take_challenge --
-- Use up a challenge: only one request can delete its row.
DELETE FROM inapp_challenges WHERE org_id = :org_id AND nonce = :nonce
RETURNING wallet_address AS wallet, key_id, origin, chain_id, expires_at;

-- find_valid_keys --
-- The keys that are still valid, with the origins of their organizations.
SELECT k.org_id, k.id, o.origins
FROM unnest(:org_ids ::bigint[], :key_ids ::uuid[]) AS s (org_id, key_id)
JOIN api_keys k ON k.org_id = s.org_id AND k.id = s.key_id
JOIN organizations o ON o.id = k.org_id
WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > :now);

-- read_inboxes --
-- The waiting messages of wallets of one organization, test messages included, oldest first, up to a limit for each
-- wallet; without those that are being delivered.
SELECT k.wallet, m.id, m.subject AS title, m.body, m.extra, m.created_at
FROM unnest(:wallets ::text[]) WITH ORDINALITY AS k (wallet, position)
CROSS JOIN LATERAL (
    (SELECT w.id, w.subject, w.body, w.extra, w.created_at FROM messages w
     WHERE w.org_id = :org_id ::bigint AND w.wallet_address = k.wallet AND w.channel = 'inapp' AND w.delivered_at IS NULL
           AND w.status = 'sent' AND w.id <> ALL (:under_way ::uuid[])
     ORDER BY w.created_at, w.id LIMIT :limit ::integer)
    UNION ALL
    (SELECT t.id, t.title, t.body, t.extra, t.created_at FROM test_pushes t
     WHERE t.org_id = :org_id ::bigint AND t.wallet_address = k.wallet AND t.id <> ALL (:under_way ::uuid[])
     ORDER BY t.created_at, t.id LIMIT :limit ::integer)
    ORDER BY created_at, id LIMIT :limit ::integer
) m
ORDER BY k.position, m.created_at, m.id;

-- acknowledge --
-- Record that wallets have received messages; only the first time counts. Test messages are deleted.
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
-- Tell every API process, when this transaction commits, which wallets have waiting messages. Notifications carry
-- marks, not addresses; 400 of them fit into the 8,000 bytes of one notification.
SELECT pg_notify((SELECT channel FROM channels WHERE purpose = 'inbox'), concat(:org_id ::bigint, ' ', string_agg(mark, ' ')))
FROM (
    SELECT mark, row_number() OVER () / 400 AS part
    FROM (SELECT DISTINCT left(md5(wallet), 16) AS mark FROM unnest(:wallets ::text[]) AS wallet) AS marks
) AS parts
GROUP BY part;

-- Suppressions, webhook secrets and endpoints ----------------------------------------------------------------------

-- note_feedback --
-- Record that an email bounced, or that its recipient complained; the same feedback again changes nothing.
WITH noted AS (
    UPDATE messages SET feedback = :feedback ::text, status = CASE :feedback ::text WHEN 'bounced' THEN 'failed' ELSE status END
    WHERE org_id = :org_id ::bigint AND id = :message_id ::uuid AND channel = 'email' AND status IN ('sent', 'unknown', 'failed')
        AND feedback IS DISTINCT FROM :feedback ::text
    RETURNING id, channel
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, id, CASE :feedback ::text WHEN 'bounced' THEN 'failed' ELSE 'delivered' END, channel,
       :feedback ::text
FROM noted
RETURNING true;

-- suppress --
-- Stop messages of a channel to an address; the first reason stays.
INSERT INTO suppressions (org_id, channel, address_digest, reason, cause, created_at)
SELECT :org_id, :channel, digest, :reason, :cause, :created_at FROM unnest(CAST(:address_digests AS uuid[])) AS digest
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- find_suppressed --
-- Which of these addresses get no more messages of a channel.
SELECT replace(CAST(address_digest AS text), '-', '')
FROM suppressions
WHERE org_id = :org_id AND channel = :channel AND address_digest = ANY (CAST(:address_digests AS uuid[]));

-- insert_webhook_secret --
-- Store an organization's first secret, unless it has one.
INSERT INTO webhook_secrets (org_id, secret, created_at)
VALUES (:org_id, :secret, :created_at)
ON CONFLICT (org_id) DO NOTHING;

-- roll_webhook_secret --
-- Replace the secret; the previous one signs, too, until the given time.
INSERT INTO webhook_secrets (org_id, secret, created_at)
VALUES (:org_id, :secret, :at)
ON CONFLICT (org_id) DO UPDATE
SET secret = excluded.secret, created_at = excluded.created_at,
    previous = webhook_secrets.secret, previous_until = :previous_until;

-- find_webhook_secrets --
-- The current secret of an organization, and the previous one while it signs.
SELECT secret, CASE WHEN previous_until > :now THEN previous END AS previous
FROM webhook_secrets
WHERE org_id = :org_id;

-- close_endpoint --
-- Send nothing more to a webhook URL.
INSERT INTO closed_endpoints (org_id, url_digest, host, closed_at)
SELECT :org_id, digest, :host, :closed_at FROM unnest(CAST(:url_digests AS uuid[])) AS digest
ON CONFLICT (org_id, url_digest) DO NOTHING;

-- open_endpoint --
-- Send to a webhook URL again; a row if it was closed.
DELETE FROM closed_endpoints
WHERE org_id = :org_id AND url_digest = ANY (CAST(:url_digests AS uuid[]))
RETURNING true;

-- find_closed_endpoints --
-- Which of these webhook URLs are closed.
SELECT replace(CAST(url_digest AS text), '-', '')
FROM closed_endpoints
WHERE org_id = :org_id AND url_digest = ANY (CAST(:url_digests AS uuid[]));

-- Test sends -------------------------------------------------------------------------------------------------------
-- Messages that authors send to themselves to try an automation.

-- find_published_urls --
-- The webhook URLs in the organization's published automations, as templates.
SELECT DISTINCT node -> 'data' ->> 'url'
FROM automations a
JOIN automation_versions v ON v.org_id = :org_id AND v.automation_id = a.id AND v.version = a.published_version
CROSS JOIN LATERAL jsonb_array_elements(v.graph -> 'nodes') AS node
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND node ->> 'type' = 'send_webhook';

-- count_test_sends --
-- How many test sends the organization made since a time (given as an id of that time).
SELECT count(*) FROM audit_log WHERE org_id = :org_id AND id >= :since_id ::uuid AND action = 'automation.test';

-- add_test_push --
-- Store an in-app message for a wallet, apart from the messages that are counted.
INSERT INTO test_pushes (org_id, id, contact_id, wallet_address, title, body, extra, created_at)
VALUES (:org_id, :id, :contact_id, :wallet, :title, :body, :extra ::jsonb, :created_at);

-- find_old_test_pushes --
-- Organizations with test messages that were not acknowledged within a day.
SELECT DISTINCT org_id FROM test_pushes WHERE created_at < :now ::timestamptz - :retention ::interval ORDER BY org_id;

-- delete_old_test_pushes --
-- Delete test messages that were not acknowledged within a day, oldest first.
DELETE FROM test_pushes WHERE org_id = :org_id AND id IN (
    SELECT id FROM test_pushes WHERE org_id = :org_id AND created_at < :now ::timestamptz - :retention ::interval
    ORDER BY created_at LIMIT :limit);

-- Usage ------------------------------------------------------------------------------------------------------------
-- Only sent messages are metered; incoming events never are.

-- count_sent --
-- How many messages of each channel were sent in a period; channels without any are left out.
SELECT channel, count(*)
FROM message_outcomes
WHERE org_id = :org_id AND at >= :since AND at < :until AND outcome = 'sent'
GROUP BY channel;
