-- What events there are. What was counted by day and hour before (api/ingest/counting.py), notes of what came late to that, and a count
-- of all other rows, seen in one statement: together they are the events created since a moment, exactly. Dry runs are not among them.
-- `first_day` and `first_hour` are the first whole ones since then, `edge_day` and `edge_hour` the ones that it cuts.

-- count_events --
-- Event names received since a moment, most frequent first, ties by name, with their counts by day.
WITH RECURSIVE reached AS (
    SELECT coalesce(max(counted_until), '-infinity') AS until FROM event_counting WHERE org_id = :org_id
), names AS (
    (SELECT v.event FROM events v
     WHERE v.org_id = :org_id AND v.created_at >= (SELECT date_trunc('month', greatest(until, :since)) FROM reached)
     ORDER BY v.event LIMIT 1)
    UNION ALL
    SELECT (SELECT v.event FROM events v
            WHERE v.org_id = :org_id AND v.event > n.event
                AND v.created_at >= (SELECT date_trunc('month', greatest(until, :since)) FROM reached)
            ORDER BY v.event LIMIT 1)
    FROM names n WHERE n.event IS NOT NULL
), late AS (
    SELECT event, at, count FROM late_events
    WHERE org_id = :org_id AND at >= :edge_hour AND at < (SELECT until FROM reached)
), edge AS MATERIALIZED (
    SELECT event FROM event_days WHERE org_id = :org_id AND day = :edge_day AND :edge_day < :since
    UNION
    SELECT event FROM late WHERE at < :first_hour
), days AS (
    SELECT event, day, count FROM event_days WHERE org_id = :org_id AND day >= :first_day
    UNION ALL
    SELECT event, date_trunc('day', at), count FROM late WHERE at >= :first_hour
    UNION ALL
    SELECT e.event, :edge_day, hours.count
    FROM edge e CROSS JOIN LATERAL (
        SELECT sum(h.count) AS count FROM event_hours h
        WHERE h.org_id = :org_id AND h.event = e.event AND h.hour >= :first_hour AND h.hour < :first_day
    ) AS hours
    UNION ALL
    SELECT e.event, :edge_day, cut.count
    FROM edge e CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = e.event AND v.created_at >= :since
            AND v.created_at < (SELECT least(until, :first_hour) FROM reached)
    ) AS cut
    UNION ALL
    SELECT n.event, live.day, live.count
    FROM names n CROSS JOIN LATERAL (
        SELECT date_trunc('day', v.created_at) AS day, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = n.event AND v.created_at >= (SELECT greatest(until, :since) FROM reached)
        GROUP BY 1
    ) AS live
), summed AS (
    SELECT event, day, sum(count)::bigint AS count FROM days
    WHERE count > 0 AND starts_with(event, :prefix) GROUP BY event, day
)
SELECT event, sum(count)::bigint AS total, array_agg(day ORDER BY day), array_agg(count ORDER BY day)
FROM summed GROUP BY event
ORDER BY total DESC, event
LIMIT :most;

-- count_event --
-- The same for one name: how often it was received on each day.
WITH reached AS (
    SELECT coalesce(max(counted_until), '-infinity') AS until FROM event_counting WHERE org_id = :org_id
), days AS (
    SELECT day, count FROM event_days WHERE org_id = :org_id AND event = :event AND day >= :first_day
    UNION ALL
    SELECT :edge_day, count FROM event_hours
    WHERE org_id = :org_id AND event = :event AND hour >= :first_hour AND hour < :first_day
    UNION ALL
    SELECT date_trunc('day', at), count FROM late_events
    WHERE org_id = :org_id AND event = :event AND at >= :first_hour AND at < (SELECT until FROM reached)
    UNION ALL
    SELECT :edge_day, count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= :since
        AND created_at < (SELECT least(until, :first_hour) FROM reached)
    UNION ALL
    SELECT date_trunc('day', created_at), count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= (SELECT greatest(until, :since) FROM reached)
    GROUP BY 1
)
SELECT day, sum(count)::bigint FROM days WHERE count > 0 GROUP BY day ORDER BY day;

-- seen --
-- When events were received first and last since a moment, in the order given.
SELECT found.first, found.last
FROM unnest(:events ::text[]) WITH ORDINALITY AS asked (event, position)
CROSS JOIN LATERAL (
    SELECT min(created_at) AS first, max(created_at) AS last FROM events
    WHERE org_id = :org_id AND event = asked.event AND created_at >= :since
) AS found
ORDER BY asked.position;

-- newest_events --
-- The newest events of one name.
SELECT id::text, created_at, occurred_at, payload
FROM events
WHERE org_id = :org_id AND event = :event AND created_at >= :since
ORDER BY created_at DESC
LIMIT :most;

-- earlier_payloads --
-- Payloads of one name from before a moment, the newest of each of `parts` equal parts of the time since another; the parts are
-- shuffled, so that the first payloads are from everywhere.
SELECT sampled.payload
FROM generate_series(0, :parts - 1) AS part
CROSS JOIN LATERAL (
    SELECT payload FROM events
    WHERE org_id = :org_id AND event = :event
        AND created_at >= :since ::timestamptz + part * (:until ::timestamptz - :since ::timestamptz) / :parts
        AND created_at < :since ::timestamptz + (part + 1) * (:until ::timestamptz - :since ::timestamptz) / :parts
    ORDER BY created_at DESC
    LIMIT :of_each
) AS sampled
ORDER BY hashtext(part::text);
