-- A page of messages, by id.
SELECT *
FROM messages
WHERE id > :after ::uuid
ORDER BY id
LIMIT :limit
