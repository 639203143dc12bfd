-- What ingest must know of automations: whether they changed, and which triggers are live; and which events come late.

-- standing --
-- The epochs of some organizations; one that never had an automation has no row. And up to where their events are closed: one
-- statement more would cost each batch a twentieth of a millisecond.
SELECT org_id, epoch, NULL::timestamptz FROM automation_epochs WHERE org_id = ANY(:org_ids ::bigint[])
UNION ALL
SELECT org_id, NULL, closed_until FROM event_counting WHERE org_id = ANY(:org_ids ::bigint[]);

-- active_automations --
-- Every automation that takes entries now, with the trigger of its published version, or of its draft when it has none.
SELECT a.id::text, a.published_version, a.stint, COALESCE(v.trigger_spec, a.trigger_spec)
FROM automations a
LEFT JOIN automation_versions v
    ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.active AND a.paused_at IS NULL AND a.archived_at IS NULL
ORDER BY a.id;

-- awaited_events --
-- The events that an entry of any version of those automations can wait for.
SELECT DISTINCT awaited.event
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id
CROSS JOIN LATERAL unnest(v.awaits) AS awaited (event)
WHERE a.org_id = :org_id AND a.active AND a.archived_at IS NULL;
