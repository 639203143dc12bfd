-- Statements for backups. They see all organizations, in a transaction with one snapshot.

-- bypasses_rls --
-- Whether row-level security does not apply to our role.
SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user;

-- hold_snapshot --
-- Export a snapshot that other sessions can take over as long as this transaction lasts. Returns its id and time.
SELECT pg_export_snapshot(), date_trunc('second', now());

-- count_rows --
-- The number of rows by table and organization, of the tables with customers' data.
SELECT 'contacts' AS "table", org_id, count(*) AS rows FROM contacts GROUP BY org_id
UNION ALL SELECT 'identities', org_id, count(*) FROM identities GROUP BY org_id
UNION ALL SELECT 'idempotency_keys', org_id, count(*) FROM idempotency_keys GROUP BY org_id
UNION ALL SELECT 'events', org_id, count(*) FROM events GROUP BY org_id
UNION ALL SELECT 'automations', org_id, count(*) FROM automations GROUP BY org_id
UNION ALL SELECT 'automation_versions', org_id, count(*) FROM automation_versions GROUP BY org_id
UNION ALL SELECT 'entries', org_id, count(*) FROM entries GROUP BY org_id
UNION ALL SELECT 'entry_steps', org_id, count(*) FROM entry_steps GROUP BY org_id
UNION ALL SELECT 'messages', org_id, count(*) FROM messages GROUP BY org_id
UNION ALL SELECT 'segment_members', org_id, count(*) FROM segment_members GROUP BY org_id
ORDER BY 1, 2;

-- find_contradictions --
-- Rows that contradict each other after a restore, by kind and organization.
SELECT 'events without their idempotency key' AS what, e.org_id, count(*) AS rows
FROM events e WHERE NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.org_id = e.org_id AND k.event_id = e.id)
GROUP BY e.org_id
UNION ALL
SELECT 'idempotency keys of no event', k.org_id, count(*)
FROM idempotency_keys k WHERE NOT EXISTS (SELECT FROM events e WHERE e.org_id = k.org_id AND e.id = k.event_id)
GROUP BY k.org_id
UNION ALL
SELECT 'events of no contact', e.org_id, count(*)
FROM events e WHERE NOT EXISTS (SELECT FROM contacts c WHERE c.org_id = e.org_id AND c.id = e.contact_id)
GROUP BY e.org_id
UNION ALL
SELECT 'entries of no automation', n.org_id, count(*)
FROM entries n WHERE NOT EXISTS (SELECT FROM automations a WHERE a.org_id = n.org_id AND a.id = n.automation_id)
GROUP BY n.org_id
UNION ALL
SELECT 'messages of no entry', m.org_id, count(*)
FROM messages m WHERE NOT EXISTS (SELECT FROM entries n WHERE n.org_id = m.org_id AND n.id = m.entry_id)
GROUP BY m.org_id
ORDER BY 1, 2;

-- has_organizations --
-- Whether the database has an organization, so that a restore would replace data.
SELECT EXISTS (SELECT FROM organizations);
