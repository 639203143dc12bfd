-- What decisions look at: events and contacts of claimed entries, what happened to the contacts before, what came since.

-- load_events --
-- The events of claimed entries.
SELECT v.id::text, v.event, v.payload, v.wallet_address, v.email, v.external_id
FROM unnest(:ids ::uuid[], :created ::timestamptz[]) AS k (id, created_at)
JOIN events v ON v.org_id = :org_id AND v.id = k.id AND v.created_at = k.created_at;

-- load_contacts --
-- The contacts of claimed entries, with their segments.
SELECT c.id::text, c.wallet_address, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment)
FROM unnest(:ids ::uuid[]) AS k (id)
JOIN contacts c ON c.org_id = :org_id AND c.id = k.id;

-- inactive_automations --
-- Which of these automations no longer run, and why.
SELECT a.id::text, CASE WHEN a.archived_at IS NULL THEN 'automation_inactive' ELSE 'automation_archived' END
FROM automations a
WHERE a.org_id = :org_id AND a.id = ANY(:ids ::uuid[]) AND (NOT a.active OR a.archived_at IS NOT NULL);

-- load_graph --
-- The graph of a published version; it never changes.
SELECT graph FROM automation_versions
WHERE org_id = :org_id AND automation_id = :automation_id AND version = :version;

-- read_entered --
-- Of each entry: when the contact last entered the automation, and whether one of those entries has not ended.
-- Another entry counts once it has taken a step, and while it is undecided if it was created before this one. Committed in
-- another order than created, two entries still cannot both come first: the later decision sees the step of the earlier.
SELECT k.id::text, max(e.created_at), bool_or(e.state IN ('pending', 'running', 'waiting', 'retrying'))
FROM unnest(:ids ::uuid[], :automation_ids ::uuid[], :contact_ids ::uuid[], :created ::timestamptz[])
    AS k (id, automation_id, contact_id, created_at)
JOIN entries e ON e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id AND e.id <> k.id
WHERE e.step > 0
    OR (e.state IN ('pending', 'running', 'waiting', 'retrying') AND (e.created_at, e.id) < (k.created_at, k.id))
GROUP BY k.id;

-- count_recent --
-- Of each entry: how many the contact had of the automation in the time before it, up to a number.
SELECT k.id::text, (
    SELECT count(*) FROM (
        SELECT FROM entries e
        WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id
            AND e.created_at > k.created_at - :seconds * interval '1 second'
            AND (e.created_at, e.id) < (k.created_at, k.id)
        LIMIT :most
    ) AS recent)
FROM unnest(:ids ::uuid[], :automation_ids ::uuid[], :contact_ids ::uuid[], :created ::timestamptz[])
    AS k (id, automation_id, contact_id, created_at);

-- read_messages_at --
-- Of each entry: when messages went to the contact since a moment, from whatever automation; not the one its own node tries to
-- send.
SELECT k.id::text, m.created_at
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :node_ids ::text[], :since ::timestamptz[]) AS k (id, contact_id, node_id, since)
JOIN messages m ON m.org_id = :org_id AND m.contact_id = k.contact_id AND m.created_at > k.since
WHERE m.channel IN ('inapp', 'email') AND m.status NOT IN ('failed', 'skipped')
    AND (m.entry_id <> k.id OR m.node_id IS DISTINCT FROM k.node_id)
ORDER BY m.created_at;

-- read_arrivals --
-- Of each entry: the newest events of some names that its contact sent after a moment, and after the event that started it.
SELECT k.id::text, a.created_at, a.event, a.wallet_address, a.email, a.external_id, a.payload, a.id::text
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :event_ids ::uuid[], :created ::timestamptz[], :since ::timestamptz[],
            :names ::text[]) AS k (id, contact_id, event_id, created_at, since, names)
CROSS JOIN LATERAL (
    SELECT v.created_at, v.event, v.wallet_address, v.email, v.external_id, v.payload, v.id
    FROM events v
    WHERE v.org_id = :org_id AND v.contact_id = k.contact_id AND v.event = ANY(string_to_array(k.names, ','))
        AND v.created_at >= k.created_at AND v.created_at > coalesce(k.since, '-infinity')
        AND (v.created_at, v.id) > (k.created_at, k.event_id)
    ORDER BY v.created_at DESC, v.id DESC
    LIMIT :most
) AS a
ORDER BY a.created_at, a.id;
