-- Merging contacts and undoing merges. The caller holds the locks of the identifiers and contacts, or of the merge's
-- row.

-- Contacts and their identifiers -----------------------------------------------------------------------------------

-- find_kept_contact --
-- The contact that this one was merged into, or its own id.
SELECT coalesce((SELECT merged_into FROM contacts WHERE org_id = :org_id AND id = :contact_id ::uuid), :contact_id ::uuid);

-- find_stored_contacts --
-- Contacts with everything that a merge reads; emails are sealed.
SELECT c.id, c.wallet_address AS wallet, c.wallet_raw, c.email, c.email_domain, c.external_id, c.attributes, c.tags, c.opted_out,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment) AS segments,
       c.merged_into, c.erased_at IS NOT NULL AS erased
FROM contacts c
WHERE c.org_id = :org_id AND c.id = ANY (:ids ::uuid[]);

-- find_identities --
-- All identifiers of these contacts.
SELECT kind, replace(value_digest::text, '-', ''), contact_id
FROM identities
WHERE org_id = :org_id AND contact_id = ANY (:ids ::uuid[])
ORDER BY kind, value_digest;

-- find_identifier_owners --
-- The owners of these identifiers.
SELECT i.kind, replace(i.value_digest::text, '-', ''), i.contact_id
FROM unnest(:kinds ::smallint[], :digests ::uuid[]) AS k (kind, digest)
JOIN identities i ON i.org_id = :org_id AND i.kind = k.kind AND i.value_digest = k.digest;

-- move_identities --
-- Move identifiers of one contact to another.
UPDATE identities i SET contact_id = :to_id
FROM unnest(:kinds ::smallint[], :digests ::uuid[]) AS k (kind, digest)
WHERE i.org_id = :org_id AND i.kind = k.kind AND i.value_digest = k.digest AND i.contact_id = :from_id;

-- write_contact --
-- Write all of a contact except its segments.
UPDATE contacts
SET wallet_address = :wallet, wallet_raw = :wallet_raw, email = :email, email_domain = :email_domain, external_id = :external_id,
    attributes = :attributes ::jsonb, replaced = NULL, tags = :tags, opted_out = :opted_out,
    updated_at = greatest(:at ::timestamptz, updated_at + interval '1 microsecond')
WHERE org_id = :org_id AND id = :contact_id;

-- mark_merged --
-- Mark a contact, and all that were merged into it, as merged into another.
UPDATE contacts SET merged_into = :keep_id
WHERE org_id = :org_id AND (id = :absorbed_id OR merged_into = :absorbed_id);

-- unmark_merged --
-- Mark a contact as separate again, together with those that had been merged into it before.
UPDATE contacts SET merged_into = nullif(:absorbed_id ::uuid, id)
WHERE org_id = :org_id AND id = ANY (:members ::uuid[]);

-- list_merged_ids --
-- A contact, and all that were merged into it, directly or not.
WITH RECURSIVE members (id) AS (
    SELECT :contact_id ::uuid
    UNION
    SELECT m.absorbed_id FROM members p
    JOIN contact_merges m ON m.org_id = :org_id AND m.keep_id = p.id AND m.undone_at IS NULL
)
SELECT id FROM members;

-- find_memberships --
-- The segments of a contact, and since when it is a member.
SELECT segment, entered_at FROM segment_members WHERE org_id = :org_id AND contact_id = :contact_id;

-- join_segments --
-- Add a contact to segments with the given entry times, and note it; segments that were archived meanwhile stay empty.
WITH joined AS (
    INSERT INTO segment_members (org_id, segment, contact_id, entered_at)
    SELECT :org_id ::bigint, m.segment, :contact_id ::uuid, m.entered_at
    FROM unnest(:segments ::text[], :entered_at ::timestamptz[]) AS m (segment, entered_at)
    JOIN segments s ON s.org_id = :org_id ::bigint AND s.name = m.segment AND s.archived_at IS NULL
    ON CONFLICT (org_id, segment, contact_id) DO NOTHING
    RETURNING segment
)
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT :org_id ::bigint, :contact_id ::uuid, :at ::timestamptz, 'segments.' || segment, 'false', 'true', 'merge', :merge_id ::uuid,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM joined
RETURNING true;

-- leave_segments --
-- Remove a contact from segments, and note it.
WITH departed AS (
    DELETE FROM segment_members
    WHERE org_id = :org_id ::bigint AND contact_id = :contact_id ::uuid AND segment = ANY (:segments ::text[])
    RETURNING segment
)
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT :org_id ::bigint, :contact_id ::uuid, :at ::timestamptz, 'segments.' || segment, 'true', 'false', 'merge', :merge_id ::uuid,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM departed
RETURNING true;

-- Merge records ----------------------------------------------------------------------------------------------------

-- add_merge --
-- Record the changes of a merge.
INSERT INTO contact_merges (org_id, id, keep_id, absorbed_id, gained, identities, absorbed, created_at, due_at)
VALUES (:org_id, :id, :keep_id, :absorbed_id, :gained ::jsonb, :identities ::jsonb, :absorbed ::jsonb, :created_at, :due_at);

-- find_merge --
-- One merge.
SELECT id, keep_id, absorbed_id, gained, identities, absorbed, created_at, undone_at
FROM contact_merges
WHERE org_id = :org_id AND id = :merge_id;

-- hold_merge --
-- One merge, locked until commit: no other transaction undoes it or moves rows for it.
SELECT id, keep_id, absorbed_id, gained, identities, absorbed, created_at, undone_at
FROM contact_merges
WHERE org_id = :org_id AND id = :merge_id
FOR UPDATE;

-- find_merge_of --
-- The merge that absorbed a contact.
SELECT id FROM contact_merges WHERE org_id = :org_id AND absorbed_id = :absorbed_id AND undone_at IS NULL;

-- mark_merge_undone --
-- Record that a merge was undone and its rows must move back.
UPDATE contact_merges SET undone_at = :at, due_at = :due_at WHERE org_id = :org_id AND id = :merge_id;

-- update_absorbed --
-- Record what the kept contact took over from the absorbed one.
UPDATE contact_merges SET absorbed = :absorbed ::jsonb WHERE org_id = :org_id AND id = :id;

-- resolve_conflicts --
-- Resolve the conflicts between two contacts that are now one.
UPDATE identity_conflicts SET resolved_by = :id
WHERE org_id = :org_id AND resolved_by IS NULL
    AND ((contact_id = :keep_id AND other_contact_id = :absorbed_id)
         OR (contact_id = :absorbed_id AND other_contact_id = :keep_id));

-- reopen_conflicts --
-- Reopen the conflicts between two contacts that are separate again.
UPDATE identity_conflicts SET resolved_by = NULL WHERE org_id = :org_id AND resolved_by = :merge_id;

-- Moving rows ------------------------------------------------------------------------------------------------------
-- Pages are in the order of `id` as text: the primary key, which a plan without statistics would read through, has another order.
-- `merged_from` is the contact that a row first belonged to. With `origins`, only rows of these first contacts move
-- (to undo a merge).

-- find_due_merges --
-- Merges, of any organization, that are due for another search for rows.
SELECT org_id, id FROM contact_merges WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- schedule_merge --
-- Set when to search for rows again; null after the last search.
UPDATE contact_merges SET due_at = :due_at WHERE org_id = :org_id AND id = :merge_id;

-- lock_live_entries --
-- Lock, until commit, the entries of a contact that have not ended; return whether a worker holds each.
SELECT state = 'running' FROM entries
WHERE org_id = :org_id AND contact_id = :from_id AND state IN ('pending', 'running', 'waiting', 'retrying', 'paused')
    AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]))
ORDER BY id
FOR UPDATE;

-- move_live_entries --
-- Move these entries to another contact in one statement, so no decision sees half of them moved.
UPDATE entries
SET contact_id = :to_id,
    merged_from = CASE WHEN :origins ::uuid[] IS NULL THEN coalesce(merged_from, :from_id) ELSE nullif(merged_from, :to_id) END
WHERE org_id = :org_id AND contact_id = :from_id AND state IN ('pending', 'waiting', 'retrying', 'paused')
    AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]));

-- wake_entries_of_contact --
-- Make entries of a contact due that wait for events: an event may have arrived at the other contact before the
-- merge.
UPDATE entries SET due_at = :at ::timestamptz, updated_at = :at ::timestamptz
WHERE org_id = :org_id AND contact_id = :contact_id AND state = 'waiting' AND awaits IS NOT NULL AND due_at > :at ::timestamptz;

-- move_events --
-- Move the next events of a contact to another.
WITH page AS (
    SELECT id, created_at FROM events
    WHERE org_id = :org_id AND contact_id = :from_id
        AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]))
    ORDER BY created_at, id LIMIT :limit
)
UPDATE events v
SET contact_id = :to_id,
    merged_from = CASE WHEN :origins ::uuid[] IS NULL THEN coalesce(v.merged_from, :from_id) ELSE nullif(v.merged_from, :to_id) END
FROM page p
WHERE v.org_id = :org_id AND v.id = p.id AND v.created_at = p.created_at;

-- move_entries --
-- Move the next entries; entries that a worker holds are left for later. Messages have no `merged_from`: they follow
-- their entry.
WITH page AS (
    SELECT id FROM entries
    WHERE org_id = :org_id AND contact_id = :from_id AND state <> 'running'
        AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]))
    ORDER BY id ::text LIMIT :limit
    FOR UPDATE
)
UPDATE entries e
SET contact_id = :to_id,
    merged_from = CASE WHEN :origins ::uuid[] IS NULL THEN coalesce(e.merged_from, :from_id) ELSE nullif(e.merged_from, :to_id) END
FROM page p
WHERE e.org_id = :org_id AND e.id = p.id;

-- move_messages --
-- Move the next messages of a contact, after their entries have moved.
WITH page AS (
    SELECT m.id FROM messages m
    JOIN entries e ON e.org_id = :org_id AND e.id = m.entry_id AND e.contact_id = :to_id
    WHERE m.org_id = :org_id AND m.contact_id = :from_id
    ORDER BY m.created_at, m.id LIMIT :limit
)
UPDATE messages m SET contact_id = :to_id
FROM page p
WHERE m.org_id = :org_id AND m.id = p.id;

-- move_onchain --
-- Move the next logs of chains.
WITH page AS (
    SELECT id FROM onchain_events
    WHERE org_id = :org_id AND contact_id = :from_id
        AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]))
    ORDER BY id ::text LIMIT :limit
)
UPDATE onchain_events o
SET contact_id = :to_id,
    merged_from = CASE WHEN :origins ::uuid[] IS NULL THEN coalesce(o.merged_from, :from_id) ELSE nullif(o.merged_from, :to_id) END
FROM page p
WHERE o.org_id = :org_id AND o.id = p.id;

-- move_starts --
-- Move the next starts.
WITH page AS (
    SELECT id FROM starts
    WHERE org_id = :org_id AND contact_id = :from_id
        AND (:origins ::uuid[] IS NULL OR merged_from = ANY (:origins ::uuid[]))
    ORDER BY id ::text LIMIT :limit
)
UPDATE starts s
SET contact_id = :to_id,
    merged_from = CASE WHEN :origins ::uuid[] IS NULL THEN coalesce(s.merged_from, :from_id) ELSE nullif(s.merged_from, :to_id) END
FROM page p
WHERE s.org_id = :org_id AND s.id = p.id;
