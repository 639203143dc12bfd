-- A fingerprint of the events of a span of time: their number, and sums that change when an event is added, erased or moved by a merge,
-- or when a contact's identifiers change. The sums of parts add up to those of the whole.
-- `address` is masked for readers who may not see addresses.
SELECT coalesce(sum(e.events), 0)::bigint AS events, coalesce(sum(e.cleaned), 0)::bigint AS cleaned,
       coalesce(sum(e.events * k.digest), 0)::text AS contacts, max(c.email) AS address
FROM (SELECT contact_id, count(*) AS events, count(*) FILTER (WHERE idempotency_key = '') AS cleaned
      FROM app_events
      WHERE created_at >= :since AND created_at < :until
      GROUP BY contact_id) e
LEFT JOIN contacts c ON c.id = e.contact_id
CROSS JOIN LATERAL (SELECT concat_ws(' ', e.contact_id, 'e', c.email, 'w', c.wallet_address, 'x', c.external_id) AS known) w
CROSS JOIN LATERAL (SELECT ('x' || left(md5(w.known), 15))::bit(60)::bigint::numeric AS digest) k
