-- Identifiers and attributes of the contacts of a page of events; or of all contacts, and of none if they exceed :contacts or :bytes.
SELECT id AS contact_id, email, wallet_address, external_id,
       CASE WHEN external_id IS NULL THEN metadata ELSE metadata - 'externalId' END AS attributes
FROM contacts
{% if of_page %}
WHERE id IN (SELECT contact_id
             FROM app_events
             WHERE created_at >= :since AND created_at < :until AND id > :after ::uuid AND id <= :last ::uuid)
{% else %}
WHERE (SELECT count(*) <= :contacts AND sum(octet_length(metadata::text)) <= :bytes
       FROM (SELECT metadata FROM contacts LIMIT CAST(:contacts AS bigint) + 1) c)
{% endif %}
