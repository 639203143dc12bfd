-- Emails and webhooks: a row before each effect, whose id is one for ever and whose text every attempt sends.

-- add_outgoing --
-- Store messages that are to leave the house; one that is there already stays as it is.
INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, recipient, subject, body,
                      html, created_at)
SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, channel, 'queued', recipient, subject, body, html,
       :at ::timestamptz
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :automation_ids ::uuid[], :entry_ids ::uuid[], :node_ids ::text[],
            :channels ::text[], :recipients ::text[], :subjects ::text[], :bodies ::text[], :htmls ::boolean[])
    AS m (id, contact_id, automation_id, entry_id, node_id, channel, recipient, subject, body, html)
ON CONFLICT (org_id, id) DO NOTHING;

-- take_outgoing --
-- Begin to send messages as they are stored, and see whether their contacts want none; those that went out before are not returned.
UPDATE messages m
SET status = 'sending', lease_token = k.token, in_doubt = m.in_doubt OR m.status IN ('sending', 'unknown')
FROM unnest(:ids ::uuid[], :tokens ::bigint[]) AS k (id, token)
WHERE m.org_id = :org_id ::bigint AND m.id = k.id AND m.status IN ('queued', 'sending', 'unknown', 'failed')
RETURNING m.id::text, m.channel, m.recipient, m.subject, m.body, m.html, m.created_at, EXISTS (
    SELECT FROM contacts c WHERE c.org_id = :org_id ::bigint AND c.id = m.contact_id AND m.channel = ANY (c.opted_out));

-- settle_outgoing --
-- Note how an attempt ended, unless somebody else has taken the message since. No outcome: nothing was attempted.
-- What failed, or was not to be sent any more, is unknown all the same when an attempt before may have arrived.
WITH settled AS (
    UPDATE messages
    SET status = CASE WHEN in_doubt AND :status ::text IN ('failed', 'skipped') THEN 'unknown' ELSE :status ::text END,
        sent_at = CASE WHEN :status ::text = 'sent' THEN :at ::timestamptz END
    WHERE org_id = :org_id ::bigint AND id = :id ::uuid AND lease_token = :token ::bigint
    RETURNING id, channel, status
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, id, CASE status WHEN 'unknown' THEN status ELSE :outcome ::text END, channel, :reason ::text
FROM settled
WHERE :outcome ::text IS NOT NULL
RETURNING true;

-- abandon_outgoing --
-- Give up what entries that have ended did not send: it failed where the entry is dead, else it was not to be sent any more.
-- What was on its way when a worker stopped may have arrived.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, entry_id FROM unnest(:entry_ids ::uuid[]) AS entry_id    -- by key: see engine.sql
), given_up AS (
    UPDATE messages m
    SET status = CASE WHEN m.in_doubt OR m.status = 'sending' THEN 'unknown' WHEN e.state = 'dead' THEN 'failed' ELSE 'skipped' END
    FROM k JOIN entries e ON e.org_id = k.org_id AND e.id = k.entry_id
    WHERE m.org_id = k.org_id AND m.entry_id = k.entry_id AND m.status IN ('queued', 'sending')
    RETURNING m.id, m.status, m.channel, e.outcome
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, id, status, channel, outcome FROM given_up
RETURNING true;

-- withhold --
-- Keep messages that are not sent at all, without their texts; one that waited for another try is skipped now.
WITH k AS (
    SELECT * FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :automation_ids ::uuid[], :entry_ids ::uuid[], :node_ids ::text[],
                         :channels ::text[], :causes ::text[])
        AS k (id, contact_id, automation_id, entry_id, node_id, channel, cause)
), withheld AS (
    INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, created_at)
    SELECT :org_id ::bigint, id, contact_id, automation_id, entry_id, node_id, 1, channel, 'skipped', :at ::timestamptz FROM k
    ON CONFLICT (org_id, id) DO UPDATE SET status = CASE WHEN messages.in_doubt THEN 'unknown' ELSE 'skipped' END
        WHERE messages.status = 'queued'
    RETURNING id, status
)
INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
SELECT :org_id ::bigint, :at ::timestamptz, k.id, withheld.status, k.channel, k.cause
FROM withheld JOIN k ON k.id = withheld.id
RETURNING true;
