-- Fingerprints of the events of consecutive spans of time that begin at :bounds: their number, and sums that change when an event is
-- added, erased or moved by a merge, or when a contact's identifiers change. The sums of parts add up to those of the whole.
-- Spans without events are left out. `address` is masked for readers who may not see addresses.
SELECT e.span, sum(e.events)::bigint AS events, sum(e.cleaned)::bigint AS cleaned, sum(e.events * k.digest)::text AS contacts, max(c.email) AS address
FROM (SELECT width_bucket(created_at, CAST(:bounds AS timestamptz[])) AS span, contact_id,
             count(*) AS events, count(*) FILTER (WHERE idempotency_key = '') AS cleaned
      FROM app_events
      WHERE created_at >= :since AND created_at < :until
      GROUP BY 1, contact_id) e
LEFT JOIN contacts c ON c.id = e.contact_id
CROSS JOIN LATERAL (SELECT concat_ws(' ', e.contact_id, 'e', c.email, 'w', c.wallet_address, 'x', c.external_id) AS known) w
CROSS JOIN LATERAL (SELECT ('x' || left(md5(w.known), 15))::bit(60)::bigint::numeric AS digest) k
GROUP BY e.span
