-- Messages that authors send to themselves to try an automation.

-- published_urls --
-- Where the organization's published automations send webhooks to, as it is written.
SELECT DISTINCT node -> 'data' ->> 'url'
FROM automations a
JOIN automation_versions v ON v.org_id = :org_id AND v.automation_id = a.id AND v.version = a.published_version
CROSS JOIN LATERAL jsonb_array_elements(v.graph -> 'nodes') AS node
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND node ->> 'type' = 'send_webhook';

-- count_test_sends --
-- How many times somebody of the organization did since a moment (an id of it).
SELECT count(*) FROM audit_log WHERE org_id = :org_id AND id >= :since_id ::uuid AND action = 'automation.test';

-- add_test_push --
-- Store an in-app message for a wallet, apart from those that are counted.
INSERT INTO test_pushes (org_id, id, contact_id, wallet_address, title, body, extra, created_at)
VALUES (:org_id, :id, :contact_id, :wallet, :title, :body, :extra ::jsonb, :created_at);

-- with_old_test_pushes --
-- Organizations with some that nobody took for a day.
SELECT DISTINCT org_id FROM test_pushes WHERE created_at < :before ORDER BY org_id;

-- forget_test_pushes --
-- Delete those that nobody took for a day, the oldest first.
DELETE FROM test_pushes WHERE org_id = :org_id AND id IN (
    SELECT id FROM test_pushes WHERE org_id = :org_id AND created_at < :before ORDER BY created_at LIMIT :most);
