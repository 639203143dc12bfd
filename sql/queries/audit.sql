-- Who changed what.

-- list_audit --
-- The newest changes before one (its id), of some kinds of things if they are given, of one thing or one action if it is; with the
-- names of the key that made it and of the automation or segment that it is about.
SELECT a.id ::text, a.created_at, a.action, a.key_id ::text, k.name, k.prefix, k.last4, a.subject_id ::text,
       coalesce(m.name, s.name), a.detail
FROM audit_log a
LEFT JOIN api_keys k ON k.org_id = :org_id AND k.id = a.key_id
LEFT JOIN automations m ON m.org_id = :org_id AND m.id = a.subject_id
LEFT JOIN segments s ON s.org_id = :org_id AND s.id = a.subject_id
WHERE a.org_id = :org_id
    AND (:kinds ::text[] IS NULL OR split_part(a.action, '.', 1) = ANY (:kinds ::text[]))
    AND (:subject_id ::uuid IS NULL OR a.subject_id = :subject_id ::uuid)
    AND (:action ::text IS NULL OR a.action = :action)
    AND (:before ::uuid IS NULL OR a.id < :before ::uuid)
ORDER BY a.id DESC
LIMIT :most;
