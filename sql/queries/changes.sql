-- The history of contacts: a row for each change of a value. The statement that notes a change runs before the one that makes it, in the
-- same transaction and under the lock of the contact, so it reads the old value. Both compute the same moment: that of the transaction,
-- or 1 µs after the contact's last change if another process's transaction was later; the `step` orders several changes in one
-- transaction. The changes of an import have a moment of their own. Attributes that an event of live ingest changes, alone in its batch,
-- are in the row of the event (`events.add_changing_events`).

-- Values of contacts -----------------------------------------------------------------------------------------------

-- note_values --
-- Note values that contacts are about to get; moments are microseconds since the epoch.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in, event_at)
SELECT r.org_id, r.contact_id,
       coalesce(timestamptz 'epoch' + r.moment_us * interval '1 microsecond',
                greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond') + r.step * interval '1 microsecond'),
       r.field, r.old, r.new, :cause ::text, r.cause_id, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint),
       CASE WHEN :cause ::text = 'event' THEN :at ::timestamptz END
FROM unnest(:org_ids ::bigint[], :contact_ids ::uuid[], :fields ::text[], :old ::jsonb[], :new ::jsonb[], :cause_ids ::uuid[],
            :steps ::integer[], :moments_us ::bigint[])
    AS r (org_id, contact_id, field, old, new, cause_id, step, moment_us)
JOIN contacts c ON c.org_id = r.org_id AND c.id = r.contact_id
RETURNING true;

-- note_attributes --
-- Note which attributes are about to change when these are merged. `earlier`: values that earlier rows of the batch give the same
-- attributes. Texts are separated as in `events.add_events`; an empty text is no object.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in, event_at)
SELECT r.org_id, r.contact_id,
       coalesce(timestamptz 'epoch' + r.moment_us * interval '1 microsecond',
                greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond') + coalesce(r.step, 0) * interval '1 microsecond'),
       'attributes.' || f.key, coalesce(r.earlier::jsonb -> f.key, c.attributes -> f.key), f.value, :cause ::text, r.cause_id,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint),
       CASE WHEN :cause ::text = 'event' THEN :at ::timestamptz END
FROM unnest(:org_ids ::bigint[], :contact_ids ::uuid[], string_to_array(:attributes, chr(30)), string_to_array(:earlier, chr(30), ''),
            :cause_ids ::uuid[], :steps ::integer[], :moments_us ::bigint[])
    AS r (org_id, contact_id, attributes, earlier, cause_id, step, moment_us)
JOIN contacts c ON c.org_id = r.org_id AND c.id = r.contact_id AND c.erased_at IS NULL
CROSS JOIN LATERAL jsonb_each(r.attributes::jsonb) AS f
WHERE coalesce(r.earlier::jsonb -> f.key, c.attributes -> f.key) IS DISTINCT FROM f.value
RETURNING true;

-- note_tags --
-- Note which contacts are about to get other tags by `entries.change_tags`, which computes the same array.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT c.org_id, c.id, greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond'), 'tags', to_jsonb(c.tags), to_jsonb(t.tags),
       :cause ::text, a.cause_id, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM unnest(:contact_id ::uuid[], :removed ::jsonb[], :added ::jsonb[], :cause_ids ::uuid[]) AS a (id, removed, added, cause_id)
JOIN contacts c ON c.org_id = :org_id ::bigint AND c.id = a.id
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT t FROM unnest(c.tags) AS t WHERE NOT a.removed ? t)
        || ARRAY(SELECT t FROM jsonb_array_elements_text(a.added) AS t WHERE t <> ALL (c.tags) OR a.removed ? t) AS tags
) AS t
WHERE c.tags <> t.tags
RETURNING true;

-- note_record --
-- Note what is about to change when all of a contact except its segments is written.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT c.org_id, c.id, greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond'), f.field, f.old, f.new, 'merge',
       :merge_id ::uuid, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM contacts c
CROSS JOIN LATERAL (
    VALUES ('email', to_jsonb(c.email), to_jsonb(:email ::text)),
           ('walletAddress', to_jsonb(c.wallet_address), to_jsonb(:wallet ::text)),
           ('externalId', to_jsonb(c.external_id), to_jsonb(:external_id ::text)),
           ('tags', to_jsonb(c.tags), to_jsonb(:tags ::text[])),
           ('optedOut', to_jsonb(c.opted_out), to_jsonb(:opted_out ::text[]))
    UNION ALL
    SELECT 'attributes.' || coalesce(o.key, n.key), o.value, n.value
    FROM jsonb_each(c.attributes) AS o
    FULL JOIN jsonb_each(:attributes ::jsonb) AS n ON n.key = o.key
) AS f (field, old, new)
WHERE c.org_id = :org_id ::bigint AND c.id = :contact_id ::uuid AND f.old IS DISTINCT FROM f.new
RETURNING true;

-- note_opt_outs --
-- Note that a contact is about to opt out of these channels only.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT c.org_id, c.id, greatest(:at ::timestamptz, c.updated_at + interval '1 microsecond'), 'optedOut', to_jsonb(c.opted_out),
       to_jsonb(:channels ::text[]), 'person', :key_id ::uuid, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM contacts c
WHERE c.org_id = :org_id ::bigint AND c.id = :contact_id ::uuid AND c.erased_at IS NULL
    AND NOT (c.opted_out @> :channels ::text[] AND c.opted_out <@ :channels ::text[])
RETURNING true;

-- note_merged --
-- Note that a contact, and those that were merged into it, are about to be merged into another.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT c.org_id, c.id, :at ::timestamptz, 'mergedInto', to_jsonb(c.merged_into), to_jsonb(:keep_id ::uuid), 'merge', :merge_id ::uuid,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM contacts c
WHERE c.org_id = :org_id ::bigint AND (c.id = :absorbed_id ::uuid OR c.merged_into = :absorbed_id ::uuid)
RETURNING true;

-- note_unmerged --
-- Note that a contact is about to be separate again, together with those that had been merged into it before.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT c.org_id, c.id, :at ::timestamptz, 'mergedInto', to_jsonb(c.merged_into), to_jsonb(nullif(:absorbed_id ::uuid, c.id)), 'merge',
       :merge_id ::uuid, (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM contacts c
WHERE c.org_id = :org_id ::bigint AND c.id = ANY (:members ::uuid[])
RETURNING true;

-- Members of segments ----------------------------------------------------------------------------------------------

-- note_entered --
-- Note the wanted contacts that entered a segment at this moment.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT m.org_id, m.contact_id, m.entered_at, 'segments.' || m.segment, 'false', 'true', 'refresh', NULL,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM wanted w
JOIN segment_members m ON m.org_id = :org_id ::bigint AND m.segment = :segment AND m.contact_id = w.contact_id
    AND m.entered_at = :at ::timestamptz
RETURNING true;

-- note_left --
-- Note contacts that have left a segment: at a refresh, or because a person (a key) has deleted it.
INSERT INTO contact_changes (org_id, contact_id, changed_at, field, old, new, cause, cause_id, stored_in)
SELECT :org_id ::bigint, contact_id, :at ::timestamptz, 'segments.' || :segment, 'true', 'false',
       CASE WHEN :key_id ::uuid IS NULL THEN 'refresh' ELSE 'person' END, :key_id ::uuid,
       (SELECT pg_current_xact_id()::text::bigint + :offset ::bigint)
FROM unnest(:ids ::uuid[]) AS l (contact_id)
RETURNING true;

-- Reading ----------------------------------------------------------------------------------------------------------

-- read_changes --
-- The changes of a contact, and of those that were merged into it, before a row, newest first; emails are sealed. Events that an undone
-- merge has not moved back yet are found by the other contact.
WITH members AS MATERIALIZED (
    SELECT array_agg(id) AS ids FROM contacts WHERE org_id = :org_id ::bigint AND (id = :contact_id ::uuid OR merged_into = :contact_id ::uuid)
)
SELECT k.changed_at, k.contact_id, k.field, k.old, k.new, k.cause, k.cause_id
FROM (
    SELECT k.changed_at, k.contact_id, k.field, k.old, k.new, k.cause, k.cause_id FROM contact_changes k
    WHERE k.org_id = :org_id ::bigint AND k.contact_id = ANY ((SELECT ids FROM members)::uuid[])
    UNION ALL
    SELECT e.changed_at, coalesce(e.merged_from, e.contact_id), 'attributes.' || f.key, e.replaced -> f.key, f.value, 'event', e.id
    FROM events e
    CROSS JOIN LATERAL jsonb_each(e.attributes) AS f
    WHERE e.org_id = :org_id ::bigint AND e.contact_id = ANY ((SELECT ids FROM members)::uuid[] || ARRAY(
            SELECT keep_id FROM contact_merges WHERE org_id = :org_id ::bigint AND absorbed_id = :contact_id ::uuid AND due_at IS NOT NULL))
        AND e.changed_at IS NOT NULL AND e.replaced -> f.key IS DISTINCT FROM f.value
        AND coalesce(e.merged_from, e.contact_id) = ANY ((SELECT ids FROM members)::uuid[])
) AS k
WHERE (k.changed_at, k.contact_id, k.field) < (:changed_at ::timestamptz, :row_contact ::uuid, :field)
ORDER BY k.changed_at DESC, k.contact_id DESC, k.field DESC
LIMIT :limit;
