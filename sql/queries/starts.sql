-- Starts: contacts that entered or left a segment, or got a broadcast. A start is a row in the shape of an event (`starting_events`).

-- add_starts --
-- Insert the starts of some contacts.
INSERT INTO starts (org_id, id, contact_id, event, payload, created_at)
SELECT :org_id ::bigint, id, contact_id, :event ::text, :payload ::jsonb, :at ::timestamptz
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[]) AS s (id, contact_id)
RETURNING true;
