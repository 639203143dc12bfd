-- What readers of parts read beside them: members of segments, and attributes and ids of contacts, by the numbers of contacts.

-- list_members --
-- The numbers of the members of a segment.
SELECT c.number FROM segment_members m
JOIN contacts c ON c.org_id = m.org_id AND c.id = m.contact_id
WHERE m.org_id = :org_id AND m.segment = :segment;

-- list_member_segments --
-- The segments that have members.
SELECT DISTINCT segment FROM segment_members WHERE org_id = :org_id ORDER BY segment;

-- list_attribute_texts --
-- The text of an attribute of every contact, as in analysts' views; a key with dots in its name comes first.
SELECT number, coalesce(metadata ->> :key, metadata #>> :path ::text[])
FROM (
    SELECT number, CASE WHEN external_id IS NULL THEN attributes
                        ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata
    FROM contacts
    WHERE org_id = :org_id AND merged_into IS NULL) c;

-- read_contact_ids --
-- The numbers and ids of the next contacts after an id, of those with a number above another: one row, as of `read_page`.
SELECT count(*), array_agg(number), array_agg(id) FROM (
    SELECT number, id FROM contacts
    WHERE org_id = :org_id AND id > :after ::uuid AND number > :above ::bigint
    ORDER BY id LIMIT :limit) AS v;
