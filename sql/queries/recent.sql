-- What came in lately, of every outcome. Followers ask `ids_after` four times a second, so it looks at nothing but ids.
-- `since` lies before `after` by more than clocks differ: it leaves out the months that cannot matter.

-- ids_after --
-- Ids beyond `after` that were not seen yet, in their order.
(SELECT id FROM events
 WHERE 'accepted' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND created_at >= :since
     AND id <> ALL (:seen ::uuid[])
 ORDER BY id LIMIT :most)
UNION ALL
(SELECT id FROM dry_runs
 WHERE 'dry_run' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND id <> ALL (:seen ::uuid[])
 ORDER BY id LIMIT :most)
UNION ALL
(SELECT id FROM event_notices
 WHERE outcome = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND id <> ALL (:seen ::uuid[])
 ORDER BY id LIMIT :most)
ORDER BY id LIMIT :most;

-- newest_ids --
-- The newest ids beyond `after`, newest first.
(SELECT id FROM events
 WHERE 'accepted' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid AND created_at >= :since
 ORDER BY id DESC LIMIT :most)
UNION ALL
(SELECT id FROM dry_runs
 WHERE 'dry_run' = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid
 ORDER BY id DESC LIMIT :most)
UNION ALL
(SELECT id FROM event_notices
 WHERE outcome = ANY (:outcomes ::text[]) AND org_id = :org_id AND id > :after ::uuid
 ORDER BY id DESC LIMIT :most)
ORDER BY id DESC LIMIT :most;

-- read_recent --
-- What is known of each, oldest first.
SELECT id, created_at AS at, 'accepted' AS outcome, event, contact_id, idempotency_key, payload,
       NULL::text AS field, NULL::text AS reason, NULL::jsonb AS body, NULL::integer AS matched
FROM events
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[]) AND created_at >= :since
UNION ALL
SELECT id, created_at, 'dry_run', event, contact_id, idempotency_key, payload, NULL, NULL, NULL, matched
FROM dry_runs
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[])
UNION ALL
SELECT id, received_at, outcome, event, NULL, idempotency_key, NULL, field, reason, body, NULL
FROM event_notices
WHERE org_id = :org_id AND id = ANY (:ids ::uuid[])
ORDER BY at, id;

-- count_entries --
-- How many entries each event of some micro-batches has. They are found by their ids, which begin with the moment of their
-- events' `created_at`: entries have no index by event.
SELECT e.event_id, count(*)
FROM unnest(:first_ids ::uuid[], :last_ids ::uuid[]) AS batch (first_id, last_id)
JOIN entries e ON e.org_id = :org_id AND e.id BETWEEN batch.first_id AND batch.last_id
GROUP BY e.event_id;

-- add_notices --
-- Keep what was refused, and what had come before; moments are microseconds since the epoch.
INSERT INTO event_notices (org_id, id, outcome, event, idempotency_key, field, reason, body, received_at)
SELECT org_id, id, outcome, event, idempotency_key, field, reason, body,
       timestamptz 'epoch' + received_us * interval '1 microsecond'
FROM unnest(:org_ids ::bigint[], :ids ::uuid[], :outcomes ::text[], :events ::text[], :idempotency_keys ::text[],
            :fields ::text[], :reasons ::text[], :bodies ::jsonb[], :received_us ::bigint[])
    AS n (org_id, id, outcome, event, idempotency_key, field, reason, body, received_us)
RETURNING true;
