-- A page of contacts, by id.
SELECT id, email, wallet_address, external_id, metadata, tags, created_at, updated_at
FROM contacts
WHERE id > :after ::uuid
ORDER BY id
LIMIT :limit
