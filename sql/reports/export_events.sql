-- A page of events between two times, by id, with the identifiers of their contacts; attributes once per contact and page.
SELECT e.*, c.email, c.wallet_address, c.external_id,
       CASE WHEN row_number() OVER (PARTITION BY e.contact_id ORDER BY e.id) > 1 THEN NULL
            WHEN c.external_id IS NULL THEN c.metadata ELSE c.metadata - 'externalId' END AS attributes
FROM (SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key
      FROM app_events
      WHERE created_at >= :since AND created_at < :until AND id > :after ::uuid
      ORDER BY id
      LIMIT :limit) e
LEFT JOIN contacts c ON c.id = e.contact_id
ORDER BY e.id
