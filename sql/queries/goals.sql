-- How many of those who entered an automation reached its goal. A contact counts once, with its first entry among the newest since a
-- moment (an id of it), by a version or a later one. One that the goal ended before its first step has entered, too; one that was
-- refused has not.

-- count_entrants --
-- By day of UTC and side: how many contacts entered, and how many of them sent an event of the goal's name within the horizon.
WITH newest AS MATERIALIZED (
    SELECT e.contact_id, e.event_created_at, e.event_id, coalesce(e.outcome = 'holdout', false) AS held_out
    FROM entries e
    WHERE e.org_id = :org_id AND e.automation_id = :automation_id AND e.id >= :since_id ::uuid
        AND e.automation_version >= :version AND (e.step > 0 OR e.outcome = 'goal')
    ORDER BY e.id DESC
    LIMIT :most
), first AS MATERIALIZED (
    SELECT DISTINCT ON (contact_id) contact_id, event_created_at, event_id, held_out
    FROM newest
    ORDER BY contact_id, event_created_at, event_id
)
SELECT (f.event_created_at AT TIME ZONE 'UTC')::date, f.held_out, count(*), count(g.found)
FROM first f
LEFT JOIN LATERAL (
    SELECT true AS found
    FROM events v
    WHERE v.org_id = :org_id AND v.contact_id = f.contact_id AND v.event = :goal
        AND v.created_at >= f.event_created_at AND v.created_at <= f.event_created_at + :horizon ::interval
        AND (v.created_at, v.id) > (f.event_created_at, f.event_id)
    LIMIT 1
) g ON true
GROUP BY 1, 2
ORDER BY 1, 2;

-- list_goal_events --
-- Those events themselves, the first of each contact, where filters choose among them.
WITH newest AS MATERIALIZED (
    SELECT e.contact_id, e.event_created_at, e.event_id, coalesce(e.outcome = 'holdout', false) AS held_out
    FROM entries e
    WHERE e.org_id = :org_id AND e.automation_id = :automation_id AND e.id >= :since_id ::uuid
        AND e.automation_version >= :version AND (e.step > 0 OR e.outcome = 'goal')
    ORDER BY e.id DESC
    LIMIT :most
), first AS MATERIALIZED (
    SELECT DISTINCT ON (contact_id) contact_id, event_created_at, event_id, held_out
    FROM newest
    ORDER BY contact_id, event_created_at, event_id
)
SELECT f.contact_id ::text, (f.event_created_at AT TIME ZONE 'UTC')::date, f.held_out,
       g.created_at, g.wallet_address, g.email, g.external_id, g.payload
FROM first f
CROSS JOIN LATERAL (
    SELECT v.created_at, v.wallet_address, v.email, v.external_id, v.payload
    FROM events v
    WHERE v.org_id = :org_id AND v.contact_id = f.contact_id AND v.event = :goal
        AND v.created_at >= f.event_created_at AND v.created_at <= f.event_created_at + :horizon ::interval
        AND (v.created_at, v.id) > (f.event_created_at, f.event_id)
    ORDER BY v.created_at, v.id
    LIMIT :most_events
) g
ORDER BY f.contact_id, g.created_at;
