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
-- Begin to send messages as they are stored; those that went out before are not returned.
UPDATE messages m SET status = 'sending', lease_token = k.token
FROM unnest(:ids ::uuid[], :tokens ::bigint[]) AS k (id, token)
WHERE m.org_id = :org_id ::bigint AND m.id = k.id AND m.status IN ('queued', 'sending', 'unknown', 'failed')
RETURNING m.id::text, m.channel, m.recipient, m.subject, m.body, m.html, m.created_at;

-- settle_outgoing --
-- Note how an attempt ended, unless somebody else has taken the message since.
UPDATE messages SET status = :status ::text, sent_at = CASE WHEN :status ::text = 'sent' THEN :at ::timestamptz END
WHERE org_id = :org_id ::bigint AND id = :id ::uuid AND lease_token = :token ::bigint;

-- abandon_outgoing --
-- Give up what entries that have ended did not send; what was on its way when a worker stopped may have arrived.
UPDATE messages m SET status = CASE m.status WHEN 'queued' THEN 'failed' ELSE 'unknown' END
FROM unnest(:entry_ids ::uuid[]) AS k (entry_id)
WHERE m.org_id = :org_id ::bigint AND m.entry_id = k.entry_id AND m.status IN ('queued', 'sending');
