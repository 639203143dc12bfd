-- Contacts one by one: what is known of each, and what it wants no messages through.

-- find_contact --
-- A contact, unless it was erased or merged into another; emails are sealed. Opted out of emails is also who unsubscribed one of their addresses.
SELECT c.id, c.wallet_address, c.wallet_raw, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment),
       ARRAY(SELECT unnest(c.opted_out)
             UNION
             SELECT s.channel FROM identities i
             JOIN suppressions s ON s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = i.value_digest
             WHERE i.org_id = :org_id AND i.contact_id = c.id AND i.kind = 2
             ORDER BY 1),
       c.created_at, c.updated_at
FROM contacts c
WHERE c.org_id = :org_id AND c.id = :id AND c.erased_at IS NULL AND c.merged_into IS NULL;

-- set_opted_out --
-- Note what a contact wants no messages through; its lock is held.
UPDATE contacts SET opted_out = :channels, updated_at = :at
WHERE org_id = :org_id AND id = :id;

-- suppress_emails_of --
-- Send the addresses of a contact no more emails, whoever they belong to later.
INSERT INTO suppressions (org_id, channel, address_digest, reason, created_at)
SELECT org_id, 'email', value_digest, 'opted_out', :at
FROM identities
WHERE org_id = :org_id AND contact_id = :id AND kind = 2
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- lift_suppressions_of --
-- Send the addresses of a contact emails again.
DELETE FROM suppressions s
USING identities i
WHERE i.org_id = :org_id AND i.contact_id = :id AND i.kind = 2
    AND s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = i.value_digest;

-- owner_of_email --
-- Whose address this is.
SELECT contact_id FROM identities
WHERE org_id = :org_id AND kind = 2 AND value_digest = :address_digest ::uuid;

-- opt_out_of_emails --
-- Note that a contact wants no more emails; its lock is held.
UPDATE contacts SET opted_out = opted_out || ARRAY['email'], updated_at = :at
WHERE org_id = :org_id AND id = :id AND erased_at IS NULL AND 'email' <> ALL (opted_out);
