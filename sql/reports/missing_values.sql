-- Of the contacts of the newest events of each name, since a moment, that are in the segments of a need: how many lack its value, and how many were looked at,
-- by the value of an attribute with their locale.
-- Contacts are found by their keys: analysts' queries use no nested loop, so a join alone would read all contacts.
WITH newest AS MATERIALIZED (
    SELECT e.contact_id, e.payload FROM unnest(CAST(:names AS text[]), CAST(:moments AS timestamptz[])) AS k (name, since)
    CROSS JOIN LATERAL (
        SELECT contact_id, payload FROM app_events WHERE event = name AND created_at >= since ORDER BY created_at DESC LIMIT 500
    ) e
)
SELECT n.number, c.locale, count(DISTINCT c.id) FILTER (WHERE (c.identifiers || e.payload || c.own || jsonb_build_object('payload', e.payload)) #> n.path IS NULL) AS missing,
       count(DISTINCT c.id) AS sampled
FROM newest e
JOIN (
    SELECT id, metadata ->> CAST(:locale_attribute AS text) AS locale, jsonb_build_object('contact', metadata) AS own, jsonb_strip_nulls(jsonb_build_object(
        'walletAddress', wallet_address, 'email', email, 'externalId', external_id)) AS identifiers
    FROM contacts WHERE id = ANY (ARRAY(SELECT contact_id FROM newest))
) c ON c.id = e.contact_id
JOIN jsonb_to_recordset(CAST(:needs AS jsonb)) AS n(number integer, path text[], segments text[])
    ON n.segments <@ ARRAY(SELECT m.segment FROM segment_members m WHERE m.contact_id = c.id)
GROUP BY n.number, c.locale
