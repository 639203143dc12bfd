-- What events there are. Hours counted before (api/ingest/counting.py), notes of what came late to them, and a count of the rest,
-- seen in one statement: together they are the events created since a moment, exactly. Dry runs are not among the events.
-- `first_hour` is the first whole hour since then, `edge_hour` the one that it cuts.

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
), hours AS (
    SELECT event, hour, count FROM event_hours WHERE org_id = :org_id AND hour >= :edge_hour
    UNION ALL
    SELECT event, at, count FROM late_events
    WHERE org_id = :org_id AND at >= :edge_hour AND at < (SELECT until FROM reached)
), counted AS MATERIALIZED (
    SELECT event, date_trunc('day', hour) AS day, sum(count) FILTER (WHERE hour >= :first_hour) AS count,
        bool_or(hour < :first_hour) AS cut
    FROM hours WHERE starts_with(event, :prefix) GROUP BY 1, 2
), days AS (
    SELECT event, day, count FROM counted WHERE count > 0
    UNION ALL
    SELECT c.event, edge.day, edge.count
    FROM counted c CROSS JOIN LATERAL (
        SELECT date_trunc('day', v.created_at) AS day, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = c.event AND v.created_at >= :since
            AND v.created_at < (SELECT least(until, :first_hour) FROM reached)
        GROUP BY 1
    ) AS edge
    WHERE c.cut
    UNION ALL
    SELECT n.event, live.day, live.count
    FROM names n CROSS JOIN LATERAL (
        SELECT date_trunc('day', v.created_at) AS day, count(*) AS count FROM events v
        WHERE v.org_id = :org_id AND v.event = n.event AND v.created_at >= (SELECT greatest(until, :since) FROM reached)
        GROUP BY 1
    ) AS live
    WHERE starts_with(n.event, :prefix)
), summed AS (
    SELECT event, day, sum(count)::bigint AS count FROM days GROUP BY event, day
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
    SELECT date_trunc('day', hour) AS day, count FROM event_hours
    WHERE org_id = :org_id AND event = :event AND hour >= :first_hour
    UNION ALL
    SELECT date_trunc('day', at), count FROM late_events
    WHERE org_id = :org_id AND event = :event AND at >= :first_hour AND at < (SELECT until FROM reached)
    UNION ALL
    SELECT date_trunc('day', created_at), count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= :since
        AND created_at < (SELECT least(until, :first_hour) FROM reached)
    GROUP BY 1
    UNION ALL
    SELECT date_trunc('day', created_at), count(*) FROM events
    WHERE org_id = :org_id AND event = :event AND created_at >= (SELECT greatest(until, :since) FROM reached)
    GROUP BY 1
)
SELECT day, sum(count)::bigint FROM days GROUP BY day ORDER BY day;

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
-- Payloads of one name from before a moment, the newest of each of `parts` equal parts of the time since another.
SELECT sampled.payload
FROM generate_series(0, :parts - 1) AS part
CROSS JOIN LATERAL (
    SELECT payload FROM events
    WHERE org_id = :org_id AND event = :event
        AND created_at >= :since ::timestamptz + part * (:until ::timestamptz - :since ::timestamptz) / :parts
        AND created_at < :since ::timestamptz + (part + 1) * (:until ::timestamptz - :since ::timestamptz) / :parts
    ORDER BY created_at DESC
    LIMIT :of_each
) AS sampled;
