-- The members of a segment, since when they are members, and their identifiers; newest last.
SELECT m.contact_id, m.entered_at, c.external_id, c.email, c.wallet_address
FROM segment_members m
JOIN contacts c ON c.id = m.contact_id
WHERE m.segment = :segment
ORDER BY m.entered_at, m.contact_id
