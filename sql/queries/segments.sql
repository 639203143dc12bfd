-- Segments: their definitions, their refreshes, and their members.

-- Definitions ------------------------------------------------------------------------------------------------------

-- insert_segment --
-- A new segment; no row if the name is taken.
INSERT INTO segments (org_id, id, name, kind, sql, params, every_seconds, provenance, size, revision, created_at, created_by,
                      updated_at, updated_by)
VALUES (:org_id, :segment_id, :name, :kind, :sql, :params ::jsonb, :every_seconds, :provenance ::jsonb, 0, 1, :at, :key_id, :at, :key_id)
ON CONFLICT (org_id, name) WHERE archived_at IS NULL DO NOTHING
RETURNING org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
          due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at, watermark;

-- find_segment --
-- The segment with a name.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at, watermark
FROM segments
WHERE org_id = :org_id AND name = :name AND archived_at IS NULL;

-- lock_segment --
-- The segment with a name, locked until commit: changes of a segment and of its members happen one after the other.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at, watermark
FROM segments
WHERE org_id = :org_id AND name = :name AND archived_at IS NULL
FOR UPDATE;

-- list_segments --
-- All segments by name.
SELECT org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
       due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at, watermark
FROM segments
WHERE org_id = :org_id AND archived_at IS NULL
ORDER BY name;

-- write_segment --
-- Change the definition of a locked segment. The new lease token invalidates a refresh of the earlier definition.
UPDATE segments
SET sql = :sql, params = :params ::jsonb, every_seconds = :every_seconds, provenance = :provenance ::jsonb, revision = :revision,
    refreshed_at = :refreshed_at, updated_at = :at, updated_by = :key_id, due_at = :due_at, lease_token = lease_token + 1,
    lease_until = NULL
WHERE org_id = :org_id AND id = :id;

-- archive_segment --
-- Archive a segment; its name is free again.
UPDATE segments
SET archived_at = :at, updated_at = :at, updated_by = :key_id, revision = revision + 1, due_at = NULL, lease_token = lease_token + 1,
    lease_until = NULL
WHERE org_id = :org_id AND id = :id;

-- find_published_specs --
-- The published versions of automations that mention segments; the language decides which segments they use.
SELECT a.name, v.trigger_spec, v.graph
FROM automations a
JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.archived_at IS NULL
    AND (strpos(v.graph ::text, 'contact.segments') > 0 OR v.trigger_spec ? 'segment')
ORDER BY a.name;

-- Refreshes --------------------------------------------------------------------------------------------------------

-- find_organizations_due --
-- Organizations with a segment that is due and none that is being refreshed; the one that has waited longest for its
-- turn first.
SELECT org_id FROM segments
WHERE archived_at IS NULL
GROUP BY org_id
HAVING bool_or(due_at <= :now) AND NOT coalesce(bool_or(lease_until > :now), false)
ORDER BY max(attempted_at) NULLS FIRST, org_id;

-- claim_due_segment --
-- Claim the segment of an organization that has been due longest, with a lease that other processes respect, unless
-- another of its segments is leased. The caller holds the organization's turn.
UPDATE segments
SET lease_token = lease_token + 1, lease_until = :until, attempted_at = :now
WHERE org_id = :org_id AND id = (
    SELECT id FROM segments
    WHERE org_id = :org_id AND due_at <= :now
    ORDER BY due_at LIMIT 1
    FOR UPDATE SKIP LOCKED)
    AND NOT EXISTS (SELECT FROM segments b WHERE b.org_id = :org_id AND b.lease_until > :now)
RETURNING org_id, id, name, kind, sql, params, every_seconds, provenance, size, refreshed_at, last_error, failing_since, failures,
          due_at, revision, lease_token, created_at, created_by, updated_at, updated_by, archived_at, watermark;

-- record_refresh --
-- Record the size after a refresh, and when to refresh again; the segment's lock is held. A size is kept if it
-- changed or is the first. The new lease token invalidates refreshes that began earlier.
WITH refreshed AS (
    UPDATE segments
    SET size = :size, refreshed_at = :at, watermark = :watermark ::jsonb, last_error = NULL, failing_since = NULL, failures = 0,
        due_at = :due_at, lease_token = lease_token + 1, lease_until = NULL
    WHERE org_id = :org_id AND id = :segment_id
    RETURNING id
)
INSERT INTO segment_sizes (org_id, segment_id, at, size, entered, departed)
SELECT :org_id, r.id, :at, :size, :entered, :departed
FROM refreshed r
WHERE :entered ::integer + :departed ::integer > 0 OR :size IS DISTINCT FROM (
    SELECT z.size FROM segment_sizes z WHERE z.org_id = :org_id AND z.segment_id = r.id ORDER BY z.at DESC LIMIT 1)
ON CONFLICT (org_id, segment_id, at) DO NOTHING;

-- record_failure --
-- Record why a refresh failed, unless the segment was refreshed, changed or claimed since; its members stay as they
-- are.
UPDATE segments
SET last_error = :error, failing_since = coalesce(failing_since, :at), failures = failures + 1, due_at = :due_at, lease_until = NULL
WHERE org_id = :org_id AND id = :id AND lease_token = :lease_token AND archived_at IS NULL;

-- postpone_refresh --
-- Release a segment and refresh it later, without counting a failure; `error` says what a late refresh waits for.
UPDATE segments
SET due_at = :due_at, lease_until = NULL, last_error = coalesce(:error ::text, last_error),
    failing_since = CASE WHEN :error ::text IS NULL THEN failing_since ELSE coalesce(failing_since, :at) END
WHERE org_id = :org_id AND id = :id AND lease_token = :lease_token AND archived_at IS NULL;

-- correct_size --
-- Add members that entered or left after the size was recorded.
UPDATE segments SET size = size + :by WHERE org_id = :org_id AND id = :id;

-- Sizes over time --------------------------------------------------------------------------------------------------

-- list_daily_sizes --
-- The size of each segment on each of the last days at this time of day, oldest first; null before it existed.
SELECT s.id, ARRAY(
    SELECT (SELECT z.size FROM segment_sizes z
            WHERE z.org_id = :org_id AND z.segment_id = s.id AND z.at <= :now ::timestamptz - make_interval(days => ago)
            ORDER BY z.at DESC LIMIT 1)
    FROM generate_series(:days ::integer - 1, 0, -1) AS ago)
FROM segments s
WHERE s.org_id = :org_id AND s.archived_at IS NULL;

-- list_sizes --
-- The size of a segment after its newest changes, newest first.
SELECT at, size, entered, departed FROM segment_sizes
WHERE org_id = :org_id AND segment_id = :id
ORDER BY at DESC
LIMIT :limit;

-- delete_old_sizes --
-- Delete the oldest sizes, which are kept for 400 days.
DELETE FROM segment_sizes s
USING (SELECT segment_id, at FROM segment_sizes WHERE org_id = :org_id AND at < :now ::timestamptz - :retention ::interval LIMIT :limit) old
WHERE s.org_id = :org_id AND s.segment_id = old.segment_id AND s.at = old.at;

-- Contacts that changed --------------------------------------------------------------------------------------------
-- For increments: every contact with a row that a watermark's snapshot does not have, or that was moved or erased since. Events and
-- changes have the number of their transaction. What has only a time counts from five minutes before the oldest transaction that was
-- open at the watermark began.

-- find_oldest_transaction --
-- Since when the oldest transaction of this role is open; it need not have a number yet. Sessions of other roles show nothing (without
-- pg_read_all_stats), so all processes of a service have to connect with one role.
SELECT min(began_at) FROM (
    SELECT xact_start FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts) AS open (began_at);

-- find_unsettled --
-- Contacts of merges and undone merges whose rows are still being moved.
SELECT c.id FROM contact_merges m CROSS JOIN LATERAL (VALUES (m.keep_id), (m.absorbed_id)) AS c (id)
WHERE m.org_id = :org_id AND m.due_at IS NOT NULL;

-- list_partitions --
-- The partitions of events: one that is dropped takes its events with it.
SELECT inhrelid::bigint FROM pg_inherits WHERE inhparent = 'workbench.events'::regclass;

-- has_many_new_events --
-- Whether more than so many events are stored by transactions from `oldest` on. `find_changed` would read all of them.
SELECT count(*) > :limit FROM (SELECT FROM events WHERE org_id = :org_id AND stored_in >= :oldest LIMIT :limit ::bigint + 1) AS stored;

-- find_changed --
-- Contacts that changed since a snapshot: those of its `open` transactions and of all from `end` on. New contacts are found by
-- their ids, which begin with the time of the transaction: those that logs of a chain create have no event. With `events` only events of
-- these names count, and those that changed attributes if the query reads contacts. Of changes of contacts, memberships count if
-- `memberships`, other values if `contact_values`, merges always, and with an undone merge the contact that was kept.
SELECT contact_id FROM events
WHERE org_id = :org_id AND stored_in >= :oldest AND (stored_in >= :end OR stored_in = ANY (:open ::bigint[]))
    AND (:events ::text[] IS NULL OR event = ANY (:events ::text[]) OR (:contact_values ::boolean AND changed_at IS NOT NULL))
UNION
SELECT contact_id FROM contact_changes
WHERE org_id = :org_id AND stored_in >= :oldest AND (stored_in >= :end OR stored_in = ANY (:open ::bigint[]))
    AND CASE WHEN field ^@ 'segments.' THEN :memberships ::boolean ELSE :contact_values ::boolean OR field = 'mergedInto' END
UNION
SELECT (old #>> '{}')::uuid FROM contact_changes
WHERE org_id = :org_id AND stored_in >= :oldest AND (stored_in >= :end OR stored_in = ANY (:open ::bigint[]))
    AND field = 'mergedInto' AND jsonb_typeof(old) = 'string'
UNION
SELECT id FROM contacts WHERE org_id = :org_id AND id >= :first_id ::uuid AND id < :last_id ::uuid
UNION
SELECT id FROM contacts WHERE org_id = :org_id AND erased_at >= :since
UNION
SELECT c.id FROM contact_merges m CROSS JOIN LATERAL (VALUES (m.keep_id), (m.absorbed_id)) AS c (id)
WHERE m.org_id = :org_id AND (m.created_at >= :since OR m.undone_at >= :since)
LIMIT :limit;

-- find_occurred --
-- Contacts with an event, of these names, that occurred between two moments. Events are received up to a week after they occurred, and up to five
-- minutes before, which limits the partitions to read.
SELECT DISTINCT contact_id FROM events
WHERE org_id = :org_id AND occurred_at >= :low ::timestamptz AND occurred_at <= :high ::timestamptz
    AND created_at >= :low ::timestamptz - interval '1 day' AND created_at <= :high ::timestamptz + interval '8 days'
    AND (:events ::text[] IS NULL OR event = ANY (:events ::text[]))
LIMIT :limit;

-- find_received --
-- Contacts with an event, of these names, that was received between two moments.
SELECT DISTINCT contact_id FROM events
WHERE org_id = :org_id AND created_at >= :low ::timestamptz AND created_at <= :high ::timestamptz
    AND (:events ::text[] IS NULL OR event = ANY (:events ::text[]))
LIMIT :limit;

-- find_created --
-- Contacts that were created between two moments.
SELECT id FROM contacts
WHERE org_id = :org_id AND created_at >= :low ::timestamptz AND created_at <= :high ::timestamptz
LIMIT :limit;

-- find_related --
-- These contacts, those that lost an identifier to them, and all that are merged with any of them.
WITH involved AS MATERIALIZED (
    SELECT id FROM unnest(:ids ::uuid[]) AS i (id)
    UNION
    SELECT k.other_contact_id FROM unnest(:ids ::uuid[]) AS i (id)
    JOIN identity_conflicts k ON k.org_id = :org_id AND k.contact_id = i.id
    WHERE k.other_contact_id IS NOT NULL
), kept AS MATERIALIZED (
    SELECT DISTINCT coalesce(c.merged_into, c.id) AS id
    FROM involved i JOIN contacts c ON c.org_id = :org_id AND c.id = i.id
)
SELECT id FROM involved
UNION
SELECT id FROM kept
UNION
SELECT c.id FROM kept k JOIN contacts c ON c.org_id = :org_id AND c.merged_into = k.id;

-- find_merged --
-- The contacts that these contacts have been merged into, and those that have been merged into these.
SELECT merged_into FROM contacts WHERE org_id = :org_id AND id = ANY (:ids ::uuid[]) AND merged_into IS NOT NULL
UNION
SELECT id FROM contacts WHERE org_id = :org_id AND merged_into = ANY (:ids ::uuid[]);

-- Members ----------------------------------------------------------------------------------------------------------
-- The ids that a query returns are copied into `candidates`, resolved to contacts in `wanted`, and then the members
-- are made equal to `wanted`, set by set. The temporary tables have no organization: they belong to the transaction
-- and are joined with the rows of one organization.
--
-- Members that an erasure or a merge is about to delete are left to it; a member that a merge is inserting is waited
-- for. If two transactions wait for each other this way, Postgres ends one of them (TransactionConflictError), and
-- the refresh is postponed. `repair_members` applies what erasures and merges committed meanwhile.

-- open_candidates --
-- The copied ids, until the transaction ends.
CREATE TEMPORARY TABLE IF NOT EXISTS candidates (contact_id uuid) ON COMMIT DELETE ROWS;

-- copy_candidates --
-- Copy ids, one per line.
COPY candidates (contact_id) FROM STDIN;

-- analyze_candidates --
-- Tell the planner how many candidates there are.
ANALYZE candidates;

-- open_wanted --
-- The wanted contacts, until the transaction ends.
CREATE TEMPORARY TABLE IF NOT EXISTS wanted (contact_id uuid) ON COMMIT DELETE ROWS;

-- resolve_members --
-- Resolve the candidates: merged contacts to the kept one. Returns how many candidates are unknown or erased, and
-- how many contacts are wanted.
WITH distinct_candidates AS MATERIALIZED (
    SELECT DISTINCT contact_id FROM candidates
), known AS MATERIALIZED (
    SELECT coalesce(c.merged_into, c.id) AS contact_id
    FROM distinct_candidates d JOIN contacts c ON c.org_id = :org_id AND c.id = d.contact_id
    WHERE c.erased_at IS NULL
), kept AS (
    INSERT INTO wanted (contact_id) SELECT DISTINCT contact_id FROM known
    RETURNING contact_id
)
SELECT (SELECT count(*) FROM kept) AS size, (SELECT count(*) FROM distinct_candidates) - (SELECT count(*) FROM known) AS unknown;

-- analyze_wanted --
-- Tell the planner how many wanted contacts there are.
ANALYZE wanted;

-- sample_members --
-- The first wanted contacts.
SELECT contact_id FROM wanted ORDER BY contact_id LIMIT :limit;

-- join_by_hash --
-- Until the members of a new segment have statistics, the planner believes that there are none, and would scan all
-- wanted contacts for each member.
SET LOCAL enable_nestloop = off;

-- compare_members --
-- How many contacts would enter the segment, and how many would leave it.
SELECT count(*) FILTER (WHERE m.contact_id IS NULL) AS entered, count(*) FILTER (WHERE w.contact_id IS NULL) AS departed
FROM wanted w
FULL JOIN (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m ON m.contact_id = w.contact_id;

-- enter_members --
-- Insert the wanted contacts that are not members yet; existing members are not written.
INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
SELECT :org_id, :segment, w.contact_id, :at
FROM wanted w
LEFT JOIN (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m ON m.contact_id = w.contact_id
WHERE m.contact_id IS NULL
ORDER BY w.contact_id
ON CONFLICT (org_id, segment, contact_id) DO NOTHING;

-- list_leaving --
-- Members that are not wanted.
SELECT m.contact_id FROM (SELECT contact_id FROM segment_members WHERE org_id = :org_id AND segment = :segment) m
LEFT JOIN wanted w ON w.contact_id = m.contact_id
WHERE w.contact_id IS NULL;

-- drop_members --
-- Delete some members, except those that another transaction is changing now. (On Citus, FOR UPDATE cannot be
-- combined with a temporary table.)
DELETE FROM segment_members
WHERE org_id = :org_id AND segment = :segment AND contact_id = ANY (ARRAY(
    SELECT contact_id FROM segment_members
    WHERE org_id = :org_id AND segment = :segment AND contact_id = ANY (:ids ::uuid[])
    FOR UPDATE SKIP LOCKED))
RETURNING contact_id;

-- enter_wanted --
-- Insert the wanted contacts as members, looking up each; for few contacts.
INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
SELECT :org_id, :segment, contact_id, :at FROM wanted
ORDER BY contact_id
ON CONFLICT (org_id, segment, contact_id) DO NOTHING;

-- list_wanted --
-- The wanted contacts.
SELECT contact_id FROM wanted;

-- list_entered --
-- The next members that entered with a refresh.
SELECT m.contact_id FROM wanted w
JOIN segment_members m ON m.org_id = :org_id AND m.segment = :segment AND m.contact_id = w.contact_id AND m.entered_at = :at
WHERE w.contact_id > :after ::uuid
ORDER BY w.contact_id
LIMIT :limit;

-- count_members --
-- The number of members.
SELECT count(*) FROM segment_members WHERE org_id = :org_id AND segment = :segment;

-- repair_members --
-- Delete members that were erased or merged since the refresh began, and insert the kept contacts of merged ones.
-- Notes the changes, and returns the change of the size. The caller keeps other changes of members out.
WITH deleted AS (
    DELETE FROM segment_members m
    USING contacts c
    WHERE m.org_id = :org_id AND m.segment = :segment AND c.org_id = :org_id AND c.id = m.contact_id
        AND num_nonnulls(c.erased_at, c.merged_into) > 0
        AND m.contact_id = ANY (ARRAY(
            SELECT id FROM contacts WHERE org_id = :org_id AND erased_at >= :since
            UNION ALL
            SELECT absorbed_id FROM contact_merges WHERE org_id = :org_id AND undone_at IS NULL AND created_at >= :since))
    RETURNING m.contact_id AS member_id, c.merged_into AS contact_id, c.erased_at, m.entered_at
), moved AS (
    INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
    SELECT :org_id, :segment, contact_id, min(entered_at)
    FROM deleted WHERE contact_id IS NOT NULL AND erased_at IS NULL GROUP BY contact_id
    ON CONFLICT (org_id, segment, contact_id) DO NOTHING
    RETURNING contact_id
), noted AS (
    INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
    SELECT :org_id ::bigint, contact_id, :at ::timestamptz, 'segments.' || :segment ::text, to_jsonb(NOT is_member), to_jsonb(is_member),
           'merge', NULL, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
    FROM (SELECT contact_id, true FROM moved UNION ALL SELECT member_id, false FROM deleted WHERE erased_at IS NULL)
        AS n (contact_id, is_member)
    RETURNING true
)
SELECT (SELECT count(*) FROM moved) - (SELECT count(*) FROM deleted);

-- clear_members --
-- Delete all members of an archived segment, also those that entered at the last moment, and note it; the caller keeps
-- other changes of members out.
WITH cleared AS (
    DELETE FROM segment_members m
    WHERE m.org_id = :org_id ::bigint AND m.segment = :segment
        AND NOT EXISTS (SELECT FROM segments s WHERE s.org_id = :org_id ::bigint AND s.name = :segment AND s.archived_at IS NULL)
    RETURNING m.contact_id
)
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT :org_id ::bigint, contact_id, :at ::timestamptz, 'segments.' || :segment, 'true', 'false', 'person', :key_id ::uuid,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM cleared
RETURNING true;

-- Audiences that arrive in parts -----------------------------------------------------------------------------------

-- add_audience_part --
-- Keep the wanted contacts as one part of an audience.
INSERT INTO audience_parts (org_id, segment_id, contact_id)
SELECT :org_id, :segment_id, w.contact_id FROM wanted w ORDER BY w.contact_id
ON CONFLICT (org_id, segment_id, contact_id) DO NOTHING;

-- empty_wanted --
-- Begin without wanted contacts.
DELETE FROM wanted;

-- use_audience_parts --
-- Copy the contacts of all parts into `wanted`: the kept ones of merged contacts, without contacts that were
-- erased since.
INSERT INTO wanted (contact_id)
SELECT DISTINCT coalesce(c.merged_into, c.id)
FROM audience_parts p JOIN contacts c ON c.org_id = p.org_id AND c.id = p.contact_id
WHERE p.org_id = :org_id AND p.segment_id = :segment_id AND c.erased_at IS NULL;

-- delete_audience_parts --
-- Delete the parts of an audience.
DELETE FROM audience_parts WHERE org_id = :org_id AND segment_id = :segment_id;
