-- The names of the attributes of some thousand contacts.
SELECT DISTINCT jsonb_object_keys(metadata) AS name FROM (SELECT metadata FROM contacts LIMIT 10000) c ORDER BY name
