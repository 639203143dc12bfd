-- The names of the attributes of up to :contacts contacts.
SELECT DISTINCT jsonb_object_keys(metadata) AS name
FROM (SELECT metadata FROM contacts LIMIT CAST(:contacts AS bigint)) c
ORDER BY name
