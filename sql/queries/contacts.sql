-- Contacts by what identifies them, read-only.

-- stored_contact --
-- The contact that owns the first of these identifiers, in the order given; emails are sealed. Opted out: see `find_contact`.
SELECT c.id, c.wallet_address, c.email, c.external_id, c.wallet_raw, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m
             WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment),
       ARRAY(SELECT unnest(c.opted_out)
             UNION
             SELECT s.channel FROM identities a
             JOIN suppressions s ON s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = a.value_digest
             WHERE a.org_id = :org_id AND a.contact_id = c.id AND a.kind = 2
             ORDER BY 1)
FROM unnest(:kinds ::smallint[], :digests ::uuid[]) WITH ORDINALITY AS k (kind, digest, position)
JOIN identities i ON i.org_id = :org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = :org_id AND c.id = i.contact_id
ORDER BY k.position
LIMIT 1;

-- known_contacts --
-- Contacts by id; emails are sealed. Those that were erased are missing.
SELECT c.id, c.wallet_address, c.email, c.external_id, c.wallet_raw, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m
             WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment),
       c.opted_out
FROM contacts c
WHERE c.org_id = :org_id AND c.id = ANY (:ids ::uuid[]) AND c.erased_at IS NULL;
