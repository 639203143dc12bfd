-- How many contacts of the newest events of each name lack a value, and how many are in the segments of its message.
SELECT n.number, count(DISTINCT c.id) FILTER (WHERE (c.context || e.payload) #> n.path IS NULL) AS lacking,
       count(DISTINCT c.id) AS reached
FROM unnest(CAST(:names AS text[])) AS name
CROSS JOIN LATERAL (
    SELECT contact_id, payload FROM app_events
    WHERE event = name AND created_at > now() - interval '30 days' ORDER BY created_at DESC LIMIT 500
) e
JOIN (
    SELECT id, jsonb_build_object('contact', metadata) || jsonb_strip_nulls(jsonb_build_object(
        'walletAddress', wallet_address, 'email', email, 'externalId', external_id)) AS context FROM contacts
) c ON c.id = e.contact_id
JOIN jsonb_to_recordset(CAST(:needs AS jsonb)) AS n(number integer, path text[], segments text[])
    ON n.segments <@ ARRAY(SELECT m.segment FROM segment_members m WHERE m.contact_id = c.id)
GROUP BY n.number
