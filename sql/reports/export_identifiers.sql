-- Identifiers and attributes of contacts, up to :limit; `of_page`: of the contacts of a page of events.
SELECT id AS contact_id, email, wallet_address, external_id,
       CASE WHEN external_id IS NULL THEN metadata ELSE metadata - 'externalId' END AS attributes
FROM contacts
{% if of_page %}
WHERE id IN (SELECT contact_id
             FROM app_events
             WHERE created_at >= :since AND created_at < :until AND id > :after ::uuid AND id <= :last ::uuid)
{% endif %}
LIMIT :limit
