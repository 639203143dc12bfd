-- Receipts and approvals: what precedes a publication by a key that may only propose it.

-- save_receipt --
INSERT INTO receipts (org_id, automation_id, content_hash, key_id, kind, result, issued_at)
VALUES (:org_id, :automation_id, :content_hash, :key_id, :kind, :result, :now)
ON CONFLICT (org_id, automation_id, content_hash, key_id, kind)
DO UPDATE SET result = excluded.result, issued_at = excluded.issued_at;

-- list_receipts --
-- The receipts of a key for a content that were issued after a moment.
SELECT kind, result, issued_at FROM receipts
WHERE org_id = :org_id AND automation_id = :automation_id AND content_hash = :content_hash AND key_id = :key_id AND issued_at > :since
ORDER BY kind;

-- asks_for_approvals --
SELECT approvals FROM organizations WHERE id = :org_id;

-- set_approvals --
UPDATE organizations SET approvals = :approvals WHERE id = :org_id;

-- find_approval --
-- The approval of what a key proposes; no row if it has not asked.
SELECT id, automation_id, content_hash, requested_by, requested_at, state, decided_by, decided_at FROM approvals
WHERE org_id = :org_id AND automation_id = :automation_id AND content_hash = :content_hash AND requested_by = :key_id;

-- ask_for_approval --
-- Ask for an approval, again if a decision is too old; no row if it was asked for already.
INSERT INTO approvals (org_id, id, automation_id, content_hash, requested_by, requested_at, state)
VALUES (:org_id, :approval_id, :automation_id, :content_hash, :key_id, :now, 'waiting')
ON CONFLICT (org_id, automation_id, content_hash, requested_by)
DO UPDATE SET requested_at = excluded.requested_at, state = 'waiting', decided_by = NULL, decided_at = NULL
    WHERE approvals.decided_at < :expired
RETURNING true;

-- lock_approval --
SELECT id, automation_id, content_hash, requested_by, requested_at, state, decided_by, decided_at FROM approvals
WHERE org_id = :org_id AND id = :approval_id FOR UPDATE;

-- decide_approval --
UPDATE approvals SET state = :state, decided_by = :key_id, decided_at = :now
WHERE org_id = :org_id AND id = :approval_id AND state <> 'rejected';

-- list_approvals --
-- The newest approvals, with the names of the automation and of the key that asked, and the reasons that it was told.
SELECT p.id, p.automation_id, a.name AS automation, coalesce(nullif(k.name, ''), p.requested_by ::text) AS requested_by,
       p.requested_at, p.state, p.decided_at, p.content_hash, p.requested_by AS key_id, coalesce((
           SELECT detail -> 'reasons' FROM audit_log
           WHERE org_id = :org_id AND subject_id = p.automation_id AND action = 'automation.propose' AND key_id = p.requested_by
               AND detail ->> 'contentHash' = encode(p.content_hash, 'hex')
           ORDER BY id DESC LIMIT 1), '[]') AS reasons
FROM approvals p
JOIN automations a ON a.org_id = p.org_id AND a.id = p.automation_id
LEFT JOIN api_keys k ON k.org_id = p.org_id AND k.id = p.requested_by
WHERE p.org_id = :org_id
ORDER BY p.state <> 'waiting', p.requested_at DESC
LIMIT :limit;

-- list_draft_authors --
-- The keys that wrote the draft since its last publication.
SELECT DISTINCT key_id FROM audit_log
WHERE org_id = :org_id AND subject_id = :automation_id AND action IN ('automation.create', 'automation.update') AND key_id IS NOT NULL
    AND id > coalesce((
        SELECT max(id::text) FROM audit_log
        WHERE org_id = :org_id AND subject_id = :automation_id AND action IN ('automation.publish', 'automation.rollback')
    ), '00000000-0000-0000-0000-000000000000')::uuid;

-- is_new_proposal --
-- Whether a key made an automation that was neither published nor activated or deactivated since.
SELECT coalesce(bool_or(action = 'automation.create' AND key_id = :key_id), false)
    AND NOT coalesce(bool_or(action IN ('automation.publish', 'automation.activate', 'automation.deactivate')
        OR action = 'automation.update' AND detail -> 'active' IS NOT NULL), false)
FROM audit_log WHERE org_id = :org_id AND subject_id = :automation_id;

-- count_planned_recipients --
-- The broadcasts of an automation that are planned or running, and the contacts that they have not started yet.
SELECT count(*), coalesce(sum(greatest(contacts - entries, 0)), 0)::bigint FROM broadcasts
WHERE org_id = :org_id AND automation_id = :automation_id AND state IN ('planned', 'running');

-- delete_old_approvals --
-- Delete approvals that were asked for and decided some time ago; the audit log keeps what was decided.
DELETE FROM approvals
WHERE org_id = :org_id AND id IN (
    SELECT id FROM approvals
    WHERE org_id = :org_id AND greatest(requested_at, decided_at) < :now ::timestamptz - :retention ::interval LIMIT :limit);

-- delete_old_receipts --
DELETE FROM receipts
WHERE org_id = :org_id AND (automation_id, content_hash, key_id, kind) IN (
    SELECT automation_id, content_hash, key_id, kind FROM receipts
    WHERE org_id = :org_id AND issued_at < :now ::timestamptz - :retention ::interval LIMIT :limit);
