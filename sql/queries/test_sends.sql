-- Messages that authors send to themselves to try an automation.

-- count_test_sends --
-- How many times somebody of the organization did since a moment (an id of it).
SELECT count(*) FROM audit_log WHERE org_id = :org_id AND id >= :since_id ::uuid AND action = 'automation.test';

-- add_test_push --
-- Store an in-app message for a wallet, apart from those that are counted.
INSERT INTO test_pushes (org_id, id, contact_id, wallet_address, title, body, extra, created_at)
VALUES (:org_id, :id, :contact_id, :wallet, :title, :body, :extra ::jsonb, :created_at);

-- forget_test_pushes --
-- Delete those that nobody took for a day, the oldest first.
DELETE FROM test_pushes WHERE org_id = :org_id AND id IN (
    SELECT id FROM test_pushes WHERE org_id = :org_id AND created_at < :before ORDER BY created_at LIMIT :most);
