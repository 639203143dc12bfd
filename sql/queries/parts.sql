-- Parts: files of events, and what is in them (docs/parts.md). One builder works on an organization at a time.

-- Progress ---------------------------------------------------------------------------------------------------------

-- find_progress --
-- How far the parts of an organization are built. No row if a month was dropped and made again since: its events may be new, or the former
-- ones from a backup, so parts begin anew.
SELECT closed, buckets, keys, folder, system_identifier, kept_at, closed_at, rewritten_at, problem,
       logs_state IS NOT DISTINCT FROM concat_ws(' ', closed, extract(epoch FROM rewritten_at)) AS has_logs
FROM part_progress
WHERE org_id = :org_id AND NOT EXISTS (
    SELECT FROM parts
    WHERE org_id = :org_id AND removed_at IS NULL AND to_regclass('workbench.events_' || month)::oid <> partition);

-- begin_parts --
-- Begin to build parts.
INSERT INTO part_progress (org_id, closed, buckets, keys, folder, system_identifier)
VALUES (:org_id, 0, :buckets, '{}', :folder, :system_identifier);

-- keep_folder --
-- An engine looks after the parts in this folder. Written every five minutes at most: the lease is an hour.
UPDATE part_progress SET kept_at = :at WHERE folder = :folder AND kept_at < :at ::timestamptz - interval '5 minutes';

-- list_abandoned --
-- Organizations whose parts are in another folder, which no engine has looked after since a moment.
SELECT org_id FROM part_progress WHERE folder IS DISTINCT FROM :folder ::uuid AND kept_at < :kept_before ORDER BY org_id;

-- advance_progress --
-- The events of more transactions are in parts now, and all that were stored before `at` unless that is null; no row if another builder was
-- faster. While an open transaction keeps `closed` where it is, so is the moment.
UPDATE part_progress
SET closed = :closed, keys = :keys, problem = NULL, logs_state = concat_ws(' ', :closed ::bigint, extract(epoch FROM rewritten_at)),
    closed_at = CASE WHEN :closed ::bigint > closed THEN coalesce(:at ::timestamptz, closed_at) ELSE closed_at END
WHERE org_id = :org_id AND closed = :previous;

-- note_logs --
-- The logs of transactions below `closed` are in parts.
UPDATE part_progress SET logs_state = concat_ws(' ', closed, extract(epoch FROM rewritten_at)) WHERE org_id = :org_id AND closed = :closed;

-- note_rewritten --
-- Parts were rewritten.
UPDATE part_progress
SET rewritten_at = :at, buckets = :buckets,
    logs_state = CASE WHEN logs_state = concat_ws(' ', closed, extract(epoch FROM rewritten_at))
                      THEN concat_ws(' ', closed, extract(epoch FROM :at ::timestamptz)) END
WHERE org_id = :org_id;

-- note_problem --
-- Why the last run failed.
UPDATE part_progress SET problem = :problem WHERE org_id = :org_id;

-- delete_progress --
-- Begin anew later.
DELETE FROM part_progress WHERE org_id = :org_id;

-- list_progress --
-- The organizations with parts, and their progress.
SELECT org_id, closed, buckets, keys, folder, system_identifier, kept_at, closed_at, rewritten_at, problem,
       logs_state IS NOT DISTINCT FROM concat_ws(' ', closed, extract(epoch FROM rewritten_at)) AS has_logs
FROM part_progress ORDER BY org_id;

-- find_oldest_open --
-- The number below which all transactions have ended in this snapshot, and the cluster.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + :added ::bigint, system_identifier FROM pg_control_system();

-- list_unbuilt --
-- Organizations that have no parts.
SELECT id FROM organizations o WHERE NOT EXISTS (SELECT FROM part_progress p WHERE p.org_id = o.id) ORDER BY id;

-- find_due --
-- Organizations with work for a builder of this folder: enough new events below the oldest open transaction, any that have waited long,
-- logs that a former version left out, files to delete, dropped months.
SELECT p.org_id FROM part_progress p
WHERE p.folder = :folder AND (
    (SELECT count(*) FROM (
        SELECT FROM events_and_logs e
        WHERE e.org_id = p.org_id AND e.stored_in >= p.closed AND e.stored_in < :oldest ORDER BY e.stored_in LIMIT :events) tail)
        >= CASE WHEN p.closed_at > :hour_ago ::timestamptz THEN :events ELSE 1 END
    OR (p.closed_at <= :hour_ago AND p.logs_state IS DISTINCT FROM concat_ws(' ', p.closed, extract(epoch FROM p.rewritten_at)))
    OR EXISTS (
        SELECT FROM parts f
        WHERE f.org_id = p.org_id AND CASE WHEN f.removed_at IS NULL THEN to_regclass('workbench.events_' || f.month)::oid IS DISTINCT FROM f.partition
                                           ELSE f.removed_at <= :removed_before ::timestamptz END))
ORDER BY p.org_id;

-- find_rewrites_due --
-- Organizations whose touched contacts are to be read again. Rewriting takes about a second for a million events, at most a twentieth of the
-- time should go into it, and until then readers take these contacts from the database: not if they are many, or if one is erased.
SELECT p.org_id FROM part_progress p
WHERE p.folder = :folder AND coalesce(p.rewritten_at, '-infinity') <= :rewritten_before ::timestamptz
    AND EXISTS (SELECT FROM touched_contacts t WHERE t.org_id = p.org_id)
    AND (coalesce(p.rewritten_at, '-infinity')
             <= :rewritten_before - (SELECT coalesce(sum(f.rows), 0) FROM parts f WHERE f.org_id = p.org_id AND f.removed_at IS NULL)::float8
                                    * interval '20 microseconds'
         OR (SELECT count(*) FROM (SELECT FROM touched_contacts t WHERE t.org_id = p.org_id LIMIT :many) AS m) >= :many
         OR EXISTS (SELECT FROM touched_contacts t JOIN contacts c ON c.org_id = t.org_id AND c.id = t.contact_id
                    WHERE t.org_id = p.org_id AND c.erased_at IS NOT NULL))
ORDER BY p.org_id;

-- count_tail --
-- The number of events that are not in parts yet, up to a limit. Without parts: all of them.
SELECT count(*) FROM (SELECT FROM events WHERE org_id = :org_id AND stored_in >= :closed ORDER BY stored_in LIMIT :limit) tail;

-- summarize_progress --
-- How many organizations could not build parts, and since when the first event waits that is not in them. Imports date events back.
SELECT count(*) FILTER (WHERE p.problem IS NOT NULL) AS failing,
       min(greatest(p.closed_at, tail.created_at)) FILTER (WHERE tail.created_at IS NOT NULL) AS behind_since
FROM part_progress p
LEFT JOIN LATERAL (
    SELECT e.created_at FROM events e
    WHERE e.org_id = p.org_id AND e.stored_in >= p.closed ORDER BY e.stored_in LIMIT 1) tail ON true;

-- find_held_event --
-- Since when the first event waits that no builder can add yet, because it is not below the oldest open transaction.
SELECT min(greatest(p.closed_at, tail.created_at))
FROM part_progress p
CROSS JOIN LATERAL (
    SELECT e.created_at FROM events e
    WHERE e.org_id = p.org_id AND e.stored_in >= greatest(p.closed, :oldest ::bigint) ORDER BY e.stored_in LIMIT 1) tail;

-- find_oldest_transaction --
-- Since when the oldest transaction with a number is open. Sessions of other roles may show nothing.
SELECT min(began_at) FROM (
    SELECT xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts) AS open (began_at);

-- find_overdue --
-- Since when files are there that should be deleted, or rewritten without an erased contact.
SELECT least(
    (SELECT min(removed_at) FROM parts),
    (SELECT min(c.erased_at) FROM touched_contacts t
     JOIN part_progress p ON p.org_id = t.org_id
     JOIN contacts c ON c.org_id = t.org_id AND c.id = t.contact_id));

-- count_touched --
-- The number of touched contacts, and since when the oldest erased one among them is erased.
SELECT count(*) AS contacts, min(c.erased_at) AS erased_at FROM touched_contacts t
JOIN contacts c ON c.org_id = t.org_id AND c.id = t.contact_id
WHERE t.org_id = :org_id;

-- count_events --
-- All events of an organization.
SELECT count(*) FROM events WHERE org_id = :org_id;

-- Contacts and names -----------------------------------------------------------------------------------------------

-- number_contacts --
-- Give the next contacts their numbers. Rows that ingest is changing are left for the next page, so that nothing waits for another.
WITH page AS (
    SELECT id FROM contacts WHERE org_id = :org_id AND number IS NULL ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE contacts c SET number = nextval('contact_numbers') FROM page p WHERE c.org_id = :org_id AND c.id = p.id;

-- has_unnumbered_contacts --
-- Whether a contact has no number.
SELECT EXISTS (SELECT FROM contacts WHERE org_id = :org_id AND number IS NULL);

-- list_event_numbers --
-- The numbers of event names.
SELECT event, number FROM event_numbers WHERE org_id = :org_id;

-- add_event_numbers --
-- Give names their numbers.
INSERT INTO event_numbers (org_id, number, event)
SELECT :org_id ::bigint, number, event FROM unnest(:numbers ::integer[], :events ::text[]) AS n (number, event)
RETURNING true;

-- Events -----------------------------------------------------------------------------------------------------------

-- find_page_end --
-- The number of the transaction that stored the event, or log, after so many others.
SELECT stored_in FROM events_and_logs
WHERE is_log = :logs AND org_id = :org_id AND stored_in >= :since AND stored_in < :until
ORDER BY stored_in OFFSET :rows LIMIT 1;

-- read_page --
-- The events, or logs, of transactions in [since, until), in arrays and joined texts: one row, whose columns need no parsing. A jsonb as
-- text has no line break, so that payloads need no array of their lengths.
SELECT array_agg(number), array_agg(occurred_at), array_agg(created_at), array_agg(stored_in), array_agg(id),
       string_agg(event, ''), array_agg(octet_length(event)), string_agg(payload, E'\n')
FROM (
    SELECT c.number, e.occurred_at, e.created_at, e.stored_in, e.id, e.event,
           CASE WHEN :payloads THEN e.payload::text ELSE '' END AS payload
    FROM events_and_logs e
    LEFT JOIN contacts c ON c.org_id = e.org_id AND c.id = e.contact_id
    WHERE e.is_log = :logs AND e.org_id = :org_id AND e.stored_in >= :since AND e.stored_in < :until
    OFFSET 0
) AS v;

-- read_part_of_transaction --
-- As `read_page`, of one transaction that stored very many events: the next ones after an id.
SELECT array_agg(number), array_agg(occurred_at), array_agg(created_at), array_agg(stored_in), array_agg(id),
       string_agg(event, ''), array_agg(octet_length(event)), string_agg(payload, E'\n')
FROM (
    SELECT c.number, e.occurred_at, e.created_at, e.stored_in, e.id, e.event,
           CASE WHEN :payloads THEN e.payload::text ELSE '' END AS payload
    FROM (SELECT * FROM events_and_logs
          WHERE is_log = :logs AND org_id = :org_id AND stored_in = :since AND id > :after ::uuid ORDER BY id LIMIT :limit) e
    LEFT JOIN contacts c ON c.org_id = e.org_id AND c.id = e.contact_id
    OFFSET 0
) AS v;

-- read_contacts --
-- As `read_page`, of contacts: the next of their events, or logs, that parts should have, after an id.
SELECT array_agg(number), array_agg(occurred_at), array_agg(created_at), array_agg(stored_in), array_agg(id),
       string_agg(event, ''), array_agg(octet_length(event)), string_agg(payload, E'\n')
FROM (
    SELECT c.number, e.occurred_at, e.created_at, e.stored_in, e.id, e.event,
           CASE WHEN :payloads THEN e.payload::text ELSE '' END AS payload
    FROM (SELECT * FROM events_and_logs
          WHERE is_log = :logs AND org_id = :org_id AND contact_id = ANY (:contact_ids ::uuid[]) AND stored_in < :until AND id > :after ::uuid
          ORDER BY id LIMIT :limit) e
    LEFT JOIN contacts c ON c.org_id = e.org_id AND c.id = e.contact_id
    OFFSET 0
) AS v;

-- list_months --
-- The months that have partitions of events, and `other`.
SELECT substr(c.relname, 8) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'workbench.events'::regclass;

-- Touched contacts -------------------------------------------------------------------------------------------------

-- list_touched --
-- Contacts whose events in parts are outdated, with their numbers and the transactions that marked them.
SELECT t.contact_id, c.number, t.marked_in, c.erased_at IS NOT NULL AS erased
FROM touched_contacts t
JOIN contacts c ON c.org_id = t.org_id AND c.id = t.contact_id
WHERE t.org_id = :org_id
ORDER BY t.contact_id;

-- clear_touched --
-- Remove marks, unless they were renewed since they were read.
-- Rows are locked in the order in which the trigger of `events` writes them.
WITH locked AS (
    SELECT t.contact_id FROM touched_contacts t
    JOIN unnest(:contact_ids ::uuid[], :marks ::bigint[]) AS m (contact_id, marked_in) ON m.contact_id = t.contact_id AND m.marked_in = t.marked_in
    WHERE t.org_id = :org_id
    ORDER BY t.contact_id
    FOR UPDATE OF t
)
DELETE FROM touched_contacts t USING locked l WHERE t.org_id = :org_id AND t.contact_id = l.contact_id;

-- clear_all_touched --
-- Remove the marks of an organization without parts. A transaction that is open now keeps its marks; all others have ended before the first
-- snapshot of the next builder.
WITH locked AS (SELECT contact_id FROM touched_contacts WHERE org_id = :org_id ORDER BY contact_id FOR UPDATE)
DELETE FROM touched_contacts t USING locked l WHERE t.org_id = :org_id AND t.contact_id = l.contact_id;

-- list_marked_without_parts --
-- Organizations with touched contacts and without parts.
SELECT id FROM organizations o
WHERE NOT EXISTS (SELECT FROM part_progress p WHERE p.org_id = o.id) AND EXISTS (SELECT FROM touched_contacts t WHERE t.org_id = o.id)
ORDER BY id;

-- The list of files ------------------------------------------------------------------------------------------------

-- list_parts --
-- The files whose events are valid. The events of a month are gone with its partition.
SELECT file, bucket, month, rows, size, (extract(epoch FROM first_at) * 1000000)::bigint AS first_at,
       (extract(epoch FROM last_at) * 1000000)::bigint AS last_at, sha256
FROM parts
WHERE org_id = :org_id AND removed_at IS NULL AND to_regclass('workbench.events_' || month)::oid = partition
ORDER BY month, bucket, rows, file;

-- list_new --
-- The files that were listed since a moment.
SELECT file FROM parts WHERE org_id = :org_id AND removed_at IS NULL AND made_at > :since;

-- find_part --
-- A file, if its events are valid.
SELECT file, bucket, month, rows, size, (extract(epoch FROM first_at) * 1000000)::bigint AS first_at,
       (extract(epoch FROM last_at) * 1000000)::bigint AS last_at, sha256
FROM parts
WHERE org_id = :org_id AND file = :file AND removed_at IS NULL AND to_regclass('workbench.events_' || month)::oid = partition;

-- add_parts --
-- List new files.
INSERT INTO parts (org_id, file, bucket, month, partition, rows, size, first_at, last_at, sha256, made_at)
SELECT :org_id ::bigint, file, bucket, month, to_regclass('workbench.events_' || month)::oid, rows, size,
       timestamptz 'epoch' + first_at * interval '1 microsecond', timestamptz 'epoch' + last_at * interval '1 microsecond', sha256,
       :at ::timestamptz
FROM unnest(:file ::uuid[], :bucket ::integer[], :month ::text[], :rows ::bigint[], :size ::bigint[], :first_at ::bigint[],
            :last_at ::bigint[], :sha256 ::bytea[])
    AS p (file, bucket, month, rows, size, first_at, last_at, sha256)
RETURNING true;

-- remove_parts --
-- Remove files from the list; fewer rows if the month of one was dropped.
UPDATE parts SET removed_at = :at
WHERE org_id = :org_id AND file = ANY (:files ::uuid[]) AND removed_at IS NULL
    AND to_regclass('workbench.events_' || month)::oid = partition;

-- remove_all_parts --
-- Remove all files from the list.
UPDATE parts SET removed_at = :at WHERE org_id = :org_id AND removed_at IS NULL;

-- remove_dropped_months --
-- Remove the files of months whose partition was dropped.
UPDATE parts SET removed_at = :at
WHERE org_id = :org_id AND removed_at IS NULL AND to_regclass('workbench.events_' || month) IS NULL;

-- list_files --
-- All files that may be on the disk, with the moment of their removal from the list.
SELECT file, removed_at FROM parts WHERE org_id = :org_id;

-- delete_removed --
-- Forget files that were deleted.
DELETE FROM parts WHERE org_id = :org_id AND file = ANY (:files ::uuid[]) AND removed_at IS NOT NULL;

-- summarize_parts --
-- What an organization's parts hold.
SELECT count(*) FILTER (WHERE removed_at IS NULL) AS files, coalesce(sum(rows) FILTER (WHERE removed_at IS NULL), 0)::bigint AS rows,
       coalesce(sum(size) FILTER (WHERE removed_at IS NULL), 0)::bigint AS size, count(removed_at) AS removed
FROM parts WHERE org_id = :org_id;
