-- How many of those who entered an automation reached its goal.

-- entrants --
-- The contacts that entered since a moment (an id of it) by a version or a later one: each with its first entry among the newest,
-- whether it was held out there, and the first events of the goal's name that it sent within the horizon; no event: a row without.
-- One that the goal ended before its first step has entered, too; one that was refused has not.
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
SELECT f.contact_id ::text, f.held_out, f.event_created_at, g.created_at, g.wallet_address, g.email, g.external_id, g.payload
FROM first f
LEFT JOIN LATERAL (
    SELECT v.created_at, v.wallet_address, v.email, v.external_id, CASE WHEN :filtered ::boolean THEN v.payload END AS payload
    FROM events v
    WHERE v.org_id = :org_id AND v.contact_id = f.contact_id AND v.event = :goal
        AND v.created_at >= f.event_created_at AND v.created_at <= f.event_created_at + :horizon ::interval
        AND (v.created_at, v.id) > (f.event_created_at, f.event_id)
    ORDER BY v.created_at, v.id
    LIMIT :most_events
) g ON true
ORDER BY f.contact_id, g.created_at;
