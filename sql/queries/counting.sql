-- Counting each event once: see api/ingest/counting.py for why nothing is lost or counted twice.

-- close_hours --
-- Let events dated before `until` be late from now on, in every organization; those not seen before are counted from `first`.
INSERT INTO event_counting (org_id, counted_until, closed_until)
SELECT id, :first ::timestamptz, :until ::timestamptz FROM organizations
WHERE id NOT IN (SELECT org_id FROM event_counting WHERE closed_until >= :until ::timestamptz)
ORDER BY id
ON CONFLICT (org_id) DO UPDATE SET closed_until = EXCLUDED.closed_until
WHERE event_counting.closed_until < EXCLUDED.closed_until;

-- wake --
-- Close organizations that rest and for which something was noted.
UPDATE event_counting SET closed_until = greatest(:until ::timestamptz, counted_until)
WHERE closed_until = :resting ::timestamptz AND org_id IN (SELECT org_id FROM late_events);

-- rest --
-- Let whatever comes be noted, and look at an organization again when something is; unless something is to be counted still.
UPDATE event_counting SET closed_until = :resting ::timestamptz
WHERE org_id = :org_id AND counted_until = closed_until AND NOT EXISTS (SELECT FROM late_events WHERE org_id = :org_id);

-- reached --
-- Where one organization is counted and closed.
SELECT counted_until, closed_until FROM event_counting WHERE org_id = :org_id;

-- uncounted --
-- Organizations that are closed further than they are counted, and do not rest.
SELECT org_id, counted_until, closed_until FROM event_counting
WHERE counted_until < closed_until AND closed_until < :resting ::timestamptz
ORDER BY org_id;

-- writers --
-- The transactions that may be storing events now: whoever does has claimed idempotency keys before.
SELECT DISTINCT virtualtransaction FROM pg_catalog.pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = 'idempotency_keys'::regclass
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());

-- advance --
-- Move on from where we thought it stands; no row where another process was faster.
UPDATE event_counting SET counted_until = :until
WHERE org_id = :org_id AND counted_until = :since AND closed_until >= :until;

-- hold_notes --
-- Wait for imports that add to their notes, in the order in which they do, so that what is counted is what stays noted.
SELECT FROM late_events WHERE org_id = :org_id AND at < :until
ORDER BY source, event, at
FOR UPDATE;

-- count_closed --
-- Count the events dated between two moments by hour, with those that came late before. Both see the same rows, so what is noted as
-- late in between is counted, and its note goes. Names are found one by one, by an index that is not led by time.
WITH RECURSIVE names AS (
    (SELECT v.event FROM events v
     WHERE v.org_id = :org_id AND v.created_at >= date_trunc('month', :since ::timestamptz)
        AND v.created_at < date_trunc('month', :until ::timestamptz) + interval '1 month'
     ORDER BY v.event LIMIT 1)
    UNION ALL
    SELECT (SELECT v.event FROM events v
            WHERE v.org_id = :org_id AND v.event > n.event AND v.created_at >= date_trunc('month', :since ::timestamptz)
                AND v.created_at < date_trunc('month', :until ::timestamptz) + interval '1 month'
            ORDER BY v.event LIMIT 1)
    FROM names n WHERE n.event IS NOT NULL
), noted AS (
    DELETE FROM late_events WHERE org_id = :org_id AND at < :until RETURNING event, at, count
), counted AS (
    SELECT n.event, found.hour, found.count
    FROM names n CROSS JOIN LATERAL (
        SELECT date_trunc('hour', v.created_at) AS hour, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = n.event AND v.created_at >= :since AND v.created_at < :until
        GROUP BY 1
    ) AS found
    UNION ALL
    SELECT event, date_trunc('hour', at), count FROM noted WHERE at < :since
)
SELECT event, hour, sum(count)::bigint FROM counted GROUP BY event, hour;

-- add_counts --
-- Add what was counted to the hours and the days.
WITH c AS MATERIALIZED (
    SELECT * FROM unnest(:events ::text[], :hours ::timestamptz[], :counts ::bigint[]) AS c (event, hour, count)
), by_day AS (
    INSERT INTO event_days (org_id, event, day, count)
    SELECT :org_id, event, date_trunc('day', hour), sum(count) FROM c GROUP BY 2, 3
    ON CONFLICT (org_id, event, day) DO UPDATE SET count = event_days.count + EXCLUDED.count
)
INSERT INTO event_hours (org_id, event, hour, count)
SELECT :org_id, event, hour, count FROM c
ON CONFLICT (org_id, event, hour) DO UPDATE SET count = event_hours.count + EXCLUDED.count;

-- note_late --
-- Note events that are dated before what is closed. An import adds to what it noted before of the same hour.
INSERT INTO late_events (org_id, source, event, at, count)
SELECT org_id, coalesce(:source ::uuid, gen_random_uuid()), event, at, count
FROM unnest(:org_ids ::bigint[], :events ::text[], :ats ::timestamptz[], :counts ::bigint[]) AS l (org_id, event, at, count)
ON CONFLICT (org_id, source, event, at) DO UPDATE SET count = late_events.count + EXCLUDED.count;

-- forget_counts --
-- Delete what lies before the hours that are ever asked for.
WITH days AS (
    DELETE FROM event_days WHERE org_id = :org_id AND day < :before
)
DELETE FROM event_hours WHERE org_id = :org_id AND hour < :before;
