-- Broadcasts: planning them, and starting their contacts.

-- Planning ---------------------------------------------------------------------------------------------------------

-- find_broadcast_automation --
-- The automation of a broadcast: whether it takes entries, and the type of its published trigger.
SELECT a.published_version AS version, a.activation, a.active AND a.archived_at IS NULL AS active, a.paused_at IS NOT NULL AS paused,
       coalesce(v.trigger_spec ->> 'type', '') AS type
FROM automations a
LEFT JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.id = :automation_id;

-- count_recipients --
-- The number of contacts of a segment (an empty name: of the organization), some of them, and their watermark: the moment of
-- the last refresh, or the present. Contacts that enter later are dated after it. All are read from one snapshot.
SELECT (SELECT count(*) FROM recipients WHERE org_id = :org_id AND segment = :segment) AS contacts,
       ARRAY(SELECT contact_id FROM recipients WHERE org_id = :org_id AND segment = :segment ORDER BY contact_id LIMIT :limit) AS sample,
       coalesce((SELECT refreshed_at FROM segments WHERE org_id = :org_id AND name = :segment AND archived_at IS NULL), :now ::timestamptz)
           AS watermark;

-- list_newest_recipients --
-- The newest contacts of a segment (an empty name: of the organization).
SELECT contact_id::text FROM recipients WHERE org_id = :org_id AND segment = :segment ORDER BY contact_id DESC LIMIT :limit;

-- count_missing --
-- Of the newest contacts of a segment (an empty name: of the organization) that are in the segments of a need: how many lack its value,
-- and how many were looked at, by the value of the attribute with their locale.
WITH newest AS MATERIALIZED (
    SELECT contact_id FROM recipients WHERE org_id = :org_id ::bigint AND segment = :segment ::text ORDER BY contact_id DESC LIMIT :limit ::bigint
)
SELECT n.number, c.locale, count(*) FILTER (WHERE c.known #> n.path IS NULL) AS missing, count(*) AS sampled
FROM newest r
CROSS JOIN LATERAL (
    SELECT id, attributes ->> :locale_attribute ::text AS locale, jsonb_build_object('contact', attributes) || jsonb_strip_nulls(
        jsonb_build_object('walletAddress', wallet_address, 'email', email, 'externalId', external_id)) AS known
    FROM contacts WHERE org_id = :org_id ::bigint AND id = r.contact_id AND erased_at IS NULL LIMIT 1    -- key by key
) AS c
JOIN jsonb_to_recordset(:needs ::jsonb) AS n (number integer, path text[], segments text[])
    ON n.segments = '{}' OR n.segments <@ ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id ::bigint AND m.contact_id = c.id)
GROUP BY n.number, c.locale;

-- insert_broadcast --
-- A new broadcast.
INSERT INTO broadcasts (org_id, id, automation_id, segment, at, state, contacts, watermark, scheduled, created_at, created_by)
VALUES (:org_id, :broadcast_id, :automation_id, :segment, :at, 'planned', :contacts, :watermark, :key_id ::uuid IS NULL, :now,
        :key_id ::uuid)
RETURNING org_id, id, automation_id, segment, at, state, reason, contacts, watermark, entered, departed, entries, last_start,
          scheduled, created_at, created_by, started_at, ended_at;

-- find_broadcast --
-- One broadcast.
SELECT org_id, id, automation_id, segment, at, state, reason, contacts, watermark, entered, departed, entries, last_start,
       scheduled, created_at, created_by, started_at, ended_at
FROM broadcasts
WHERE org_id = :org_id AND id = :broadcast_id;

-- lock_broadcast --
-- One broadcast, locked until commit.
SELECT org_id, id, automation_id, segment, at, state, reason, contacts, watermark, entered, departed, entries, last_start,
       scheduled, created_at, created_by, started_at, ended_at
FROM broadcasts
WHERE org_id = :org_id AND id = :broadcast_id
FOR UPDATE;

-- list_broadcasts --
-- The newest broadcasts.
SELECT org_id, id, automation_id, segment, at, state, reason, contacts, watermark, entered, departed, entries, last_start,
       scheduled, created_at, created_by, started_at, ended_at
FROM broadcasts
WHERE org_id = :org_id AND id < coalesce(:before ::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT :limit;

-- stop_broadcasts --
-- Stop the broadcasts of an automation. One whose page is being made is locked; its next page finds the automation switched off.
UPDATE broadcasts SET state = 'stopped', reason = :reason, ended_at = :now
WHERE org_id = :org_id AND id = ANY (ARRAY(
    SELECT id FROM broadcasts WHERE org_id = :org_id AND automation_id = :automation_id AND state IN ('planned', 'running')
    FOR UPDATE SKIP LOCKED));

-- find_planned_automations --
-- The automations with a broadcast to a segment that has not started.
SELECT DISTINCT a.name
FROM broadcasts b JOIN automations a ON a.org_id = b.org_id AND a.id = b.automation_id
WHERE b.org_id = :org_id AND b.segment = :segment AND b.state = 'planned'
ORDER BY a.name;

-- Sending ----------------------------------------------------------------------------------------------------------
-- The ids of the starts of a broadcast are the first 24 characters of its own id and a number, so a page is a range of the primary
-- key. The recipients are fixed by one transaction; the pages only read what it stored.

-- find_due_broadcasts --
-- The broadcasts of all organizations in a state (planned, running) that are due.
SELECT org_id, id FROM broadcasts WHERE state IN ('planned', 'running') AND state = :state AND at <= :now ORDER BY at, id;

-- claim_broadcast --
-- A broadcast that has started, locked until commit; no row if another process has locked it.
SELECT org_id, id, automation_id, segment, at, state, reason, contacts, watermark, entered, departed, entries, last_start,
       scheduled, created_at, created_by, started_at, ended_at
FROM broadcasts
WHERE org_id = :org_id AND id = :broadcast_id AND state = 'running'
FOR UPDATE SKIP LOCKED;

-- read_recipients --
-- The recipients of a broadcast, and whether they entered after its watermark. Read page by page, from one snapshot.
SELECT contact_id::text, since > :watermark ::timestamptz FROM recipients WHERE org_id = :org_id AND segment = :segment ORDER BY contact_id;

-- add_recipients --
-- Store the starts of the recipients that follow the first `number` ones, dated so that `pace` of them are due per second.
INSERT INTO starts (org_id, id, contact_id, event, payload, created_at, automation_id)
SELECT :org_id ::bigint, (left(:id ::text, 24) || lpad(to_hex(:number ::bigint + nth), 12, '0'))::uuid, contact_id, :event ::text,
       CASE WHEN :segment ::text = '' THEN '{}' ELSE jsonb_build_object('segment', :segment ::text) END,
       :first_at ::timestamptz + (:number ::bigint + nth - 1) / :pace ::bigint * interval '1 second', :automation_id ::uuid
FROM unnest(:contact_ids ::uuid[]) WITH ORDINALITY AS recipient (contact_id, nth)
RETURNING true;

-- list_next_starts --
-- The next starts of a broadcast.
SELECT id FROM starts
WHERE org_id = :org_id AND id > coalesce(:last_start ::uuid, (left(:id ::text, 24) || '000000000000')::uuid)
    AND id <= (left(:id ::text, 24) || 'ffffffffffff')::uuid
ORDER BY id
LIMIT :limit;

-- list_separated_starts --
-- The starts of contacts that were one person when a page was made, because a merge of them was undone after the broadcast started.
SELECT s.id
FROM contact_merges m
JOIN contacts c ON c.org_id = m.org_id AND (c.id IN (m.keep_id, m.absorbed_id) OR c.merged_into IN (m.keep_id, m.absorbed_id))
CROSS JOIN LATERAL (
    SELECT id FROM starts WHERE org_id = :org_id AND contact_id = c.id AND created_at >= :started_at ::timestamptz
) AS s
WHERE m.org_id = :org_id AND m.undone_at >= :started_at ::timestamptz AND left(s.id ::text, 24) = left(:id ::text, 24);

-- add_broadcast_entries --
-- Make entries of starts of a broadcast, each at the moment of its start. A contact that was merged since counts as the kept one, once.
-- Returns the number of entries. `merged_from` is the first contact of a row that a merge has moved, or its undo has not moved back.
WITH recipient AS MATERIALIZED (
    SELECT s.id, s.created_at, s.contact_id AS first_id, coalesce(c.merged_into, c.id) AS contact_id
    FROM unnest(:start_ids ::uuid[]) AS k (id)
    CROSS JOIN LATERAL (
        SELECT id, created_at, coalesce(merged_from, contact_id) AS contact_id FROM starts
        WHERE org_id = :org_id ::bigint AND id >= k.id AND id <= k.id ORDER BY id LIMIT 1    -- as `load_events`
    ) AS s
    CROSS JOIN LATERAL (
        SELECT id, merged_into FROM contacts WHERE org_id = :org_id ::bigint AND id = s.contact_id AND erased_at IS NULL LIMIT 1    -- key by key
    ) AS c
), made AS (
    INSERT INTO entries (org_id, id, automation_id, automation_version, activation, event_id, event_created_at, contact_id, state, due_at,
                         created_at, updated_at, merged_from)
    SELECT :org_id ::bigint, (left(:first_id ::text, 24) || right(r.id ::text, 12))::uuid, :automation_id ::uuid, :version ::integer,
           :activation ::integer, r.id, r.created_at, r.contact_id, 'pending', r.created_at, r.created_at, r.created_at,
           nullif(r.first_id, r.contact_id)
    FROM recipient r
    CROSS JOIN LATERAL (
        SELECT ARRAY(SELECT id FROM contacts WHERE org_id = :org_id ::bigint AND merged_into = r.contact_id) || r.contact_id AS ids
    ) AS person
    WHERE NOT EXISTS (
        SELECT FROM unnest(person.ids) AS p (id)
        CROSS JOIN LATERAL (
            SELECT id, coalesce(merged_from, contact_id) AS first_id FROM starts
            WHERE org_id = :org_id ::bigint AND contact_id = p.id AND created_at >= :started_at ::timestamptz
            ORDER BY created_at OFFSET 0    -- the order of the index on contacts, contact by contact
        ) AS other
        WHERE other.id < r.id AND left(other.id ::text, 24) = left(:id ::text, 24) AND other.first_id = ANY (person.ids))
    ON CONFLICT (org_id, automation_id, event_id) DO NOTHING
    RETURNING true
)
SELECT count(*) FROM made;

-- write_broadcast --
-- Record the progress of a locked broadcast.
UPDATE broadcasts
SET state = :state, reason = :reason, entered = :entered, departed = :departed, entries = :entries, last_start = :last_start ::uuid,
    started_at = :started_at ::timestamptz, ended_at = :ended_at ::timestamptz
WHERE org_id = :org_id AND id = :id;

-- delete_unsent_starts --
-- Delete the starts of which a stopped broadcast made no entry, 30 days after its end.
DELETE FROM starts
WHERE org_id = :org_id AND id = ANY (ARRAY(
    SELECT s.id FROM broadcasts b
    CROSS JOIN LATERAL (
        SELECT id FROM starts
        WHERE org_id = :org_id AND id > coalesce(b.last_start, (left(b.id ::text, 24) || '000000000000')::uuid)
            AND id <= (left(b.id ::text, 24) || 'ffffffffffff')::uuid
        ORDER BY id
        LIMIT :limit
    ) AS s
    WHERE b.org_id = :org_id AND b.state = 'stopped' AND b.ended_at < :now ::timestamptz - :retention ::interval
    LIMIT :limit));

-- Results ----------------------------------------------------------------------------------------------------------

-- list_broadcast_entries --
-- The next entries of a broadcast, by their starts. `admitted`: as in `find_first_entries`.
SELECT contact_id, event_id, event_created_at AS at, state, coalesce(outcome = 'holdout', false) AS held_out,
       (node_id IS NOT NULL OR state = 'dead') AND coalesce(outcome, '') NOT IN ('reentry', 'loop_guard', 'joined') AS admitted, id
FROM entries
WHERE org_id = :org_id AND automation_id = :automation_id
    AND event_id > coalesce(:after ::uuid, (left(:id ::text, 24) || '000000000000')::uuid)
    AND event_id <= (left(:id ::text, 24) || 'ffffffffffff')::uuid
ORDER BY event_id
LIMIT :limit;

-- count_messages_of_entries --
-- The messages of these entries by step, channel, status, feedback, and the cause of those that were skipped; how many there are, and
-- how many have a click. A message that its step did not skip was skipped with its entry, whose outcome says why.
SELECT m.node_id, m.channel, m.status, m.feedback, coalesce(s.cause, m.outcome) AS cause, count(*) AS messages, count(c.id) AS clicked
FROM unnest(:entry_ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT m.id, m.entry_id, m.contact_id, m.node_id, m.channel, m.status, m.feedback, m.track_clicks, m.created_at,
           CASE WHEN m.status = 'skipped' THEN (SELECT outcome FROM entries WHERE org_id = :org_id ::bigint AND id = k.id) END AS outcome
    FROM messages m
    WHERE m.org_id = :org_id ::bigint AND m.entry_id = k.id
    ORDER BY m.node_id, m.visit OFFSET 0    -- entry by entry
) AS m
LEFT JOIN LATERAL (
    SELECT detail ->> 'cause' AS cause FROM entry_steps
    WHERE m.status = 'skipped' AND org_id = :org_id ::bigint AND entry_id = m.entry_id AND node_id = m.node_id
        AND outcome IN ('skipped', 'undeliverable')
    ORDER BY claim DESC, step DESC LIMIT 1
) AS s ON true
LEFT JOIN LATERAL (
    SELECT id FROM events
    WHERE m.track_clicks AND org_id = :org_id ::bigint AND contact_id = m.contact_id AND event || '' = 'link.clicked'
        AND created_at >= m.created_at AND payload ->> 'messageId' = m.id ::text
    ORDER BY created_at LIMIT 1
) AS c ON true
GROUP BY 1, 2, 3, 4, 5;

-- Schedules --------------------------------------------------------------------------------------------------------

-- list_schedules --
-- The automations of all organizations that take entries now from a schedule, with the moment after which their next run comes.
SELECT a.org_id, a.id AS automation_id, v.trigger_spec,
       greatest(s.planned_until, coalesce(a.live_since, a.created_at)) AS planned_until
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
LEFT JOIN schedules s ON s.org_id = a.org_id AND s.automation_id = a.id
WHERE a.active AND a.paused_at IS NULL AND a.archived_at IS NULL AND v.trigger_spec ->> 'type' = 'schedule'
ORDER BY a.org_id, a.id;

-- take_run --
-- Record that the runs of a schedule up to a moment are planned; no row if another process was faster.
INSERT INTO schedules AS s (org_id, automation_id, planned_until) VALUES (:org_id, :automation_id, :at)
ON CONFLICT (org_id, automation_id) DO UPDATE SET planned_until = excluded.planned_until WHERE s.planned_until < excluded.planned_until
RETURNING true;
