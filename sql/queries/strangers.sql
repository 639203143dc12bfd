-- Logs of chains that are about nobody known: who may not become a contact, and how often that came up.

-- find_erased --
-- Which of these wallets are of contacts that were erased, and until when (seconds since the epoch); `position` counts from 0.
WITH k AS MATERIALIZED (
    SELECT * FROM unnest(:org_ids ::bigint[], :digests ::uuid[]) WITH ORDINALITY AS k (org_id, digest, position)
)
SELECT k.position - 1, extract(epoch FROM e.erased_at)::float8
FROM k CROSS JOIN LATERAL (
    SELECT w.erased_at FROM erased_wallets w WHERE w.org_id = k.org_id AND w.wallet_digest = k.digest
    ORDER BY w.wallet_digest    -- key by key
) AS e;

-- count_created --
-- How many contacts automations made in an hour.
SELECT k.automation_id::text, s.count
FROM unnest(:org_ids ::bigint[], :automation_ids ::uuid[]) AS k (org_id, automation_id)
CROSS JOIN LATERAL (
    SELECT c.count FROM stranger_counts c
    WHERE c.org_id = k.org_id AND c.automation_id = k.automation_id AND c.hour = :hour ::timestamptz AND c.what = 'created'
    ORDER BY c.hour    -- key by key
) AS s;

-- add_strangers --
-- Count what came up in an hour.
INSERT INTO stranger_counts AS s (org_id, automation_id, hour, what, count)
SELECT org_id, automation_id, :hour ::timestamptz, what, count
FROM unnest(:org_ids ::bigint[], :automation_ids ::uuid[], :whats ::text[], :counts ::bigint[])
    AS k (org_id, automation_id, what, count)
ORDER BY org_id, automation_id, what
ON CONFLICT (org_id, automation_id, hour, what) DO UPDATE SET count = s.count + excluded.count;

-- list_strangers --
-- What came up with the automations of an organization since a moment, the most frequent first.
SELECT s.automation_id, a.name, s.what, sum(s.count)::bigint
FROM stranger_counts s
JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
WHERE s.org_id = :org_id AND s.hour >= :since
GROUP BY s.automation_id, a.name, s.what
ORDER BY sum(s.count) DESC, a.name, s.what;

-- forget_strangers --
-- Delete the oldest counts; they are kept for seven days.
DELETE FROM stranger_counts s
USING (SELECT automation_id, hour, what FROM stranger_counts WHERE org_id = :org_id AND hour < :before LIMIT :most) old
WHERE s.org_id = :org_id AND s.automation_id = old.automation_id AND s.hour = old.hour AND s.what = old.what;
