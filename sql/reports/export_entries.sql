-- A page of entries, by id.
SELECT *
FROM automation_entries
WHERE id > :after ::uuid
ORDER BY id
LIMIT :limit
