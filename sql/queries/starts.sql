-- Starts: contacts that entered or left a segment, or got a broadcast. A start is a row in the shape of an event (`starting_events`).

-- find_started_automations --
-- The automations that take entries now from a change of a segment, with the trigger of the published version, or of the
-- draft if none is published.
SELECT a.org_id, a.id::text, a.published_version, a.activation, COALESCE(v.trigger_spec, a.trigger_spec) AS trigger_spec,
       COALESCE(a.live_since, a.created_at) AS live_since
FROM automations a
LEFT JOIN automation_versions v
    ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.active AND a.paused_at IS NULL AND a.archived_at IS NULL
    AND COALESCE(v.trigger_spec, a.trigger_spec) ->> 'type' = :event
    AND COALESCE(v.trigger_spec, a.trigger_spec) ->> 'segment' = :segment ::text
ORDER BY a.id;

-- add_starts --
-- Insert the starts of some contacts.
INSERT INTO starts (org_id, id, contact_id, event, payload, created_at)
SELECT :org_id ::bigint, id, contact_id, :event ::text, :payload ::jsonb, :at ::timestamptz
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[]) AS s (id, contact_id)
RETURNING true;
