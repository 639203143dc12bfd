-- Topics, and the choices of contacts.

-- Topics -----------------------------------------------------------------------------------------------------------

-- list_topics --
-- The topics of an organization, by name; of some names, if given.
SELECT name, label, labels, opt_in, created_at, updated_at
FROM topics
WHERE org_id = :org_id AND deleted_at IS NULL AND (:names ::text[] IS NULL OR name = ANY (:names ::text[]))
ORDER BY name;

-- lock_topics --
-- Topics of some names, by name, which no other transaction deletes or changes until this one ends.
SELECT name, label, labels, opt_in, created_at, updated_at
FROM topics
WHERE org_id = :org_id AND deleted_at IS NULL AND name = ANY (:names ::text[])
ORDER BY name
FOR UPDATE;

-- write_topic --
-- Create or change a topic; one that was deleted exists again, with the choices that contacts made.
INSERT INTO topics (org_id, name, label, labels, opt_in, created_at, updated_at)
VALUES (:org_id, :name, :label, :labels ::jsonb, :opt_in, :at, :at)
ON CONFLICT (org_id, name) DO UPDATE
SET label = excluded.label, labels = excluded.labels, opt_in = excluded.opt_in, updated_at = excluded.updated_at, deleted_at = NULL
RETURNING name, label, labels, opt_in, created_at, updated_at;

-- delete_topic --
-- Delete a topic; a row if it existed.
UPDATE topics SET deleted_at = :at WHERE org_id = :org_id AND name = :name AND deleted_at IS NULL
RETURNING true;

-- count_topics --
-- How many topics there are.
SELECT count(*) FROM topics WHERE org_id = :org_id AND deleted_at IS NULL;

-- Choices ----------------------------------------------------------------------------------------------------------

-- add_consents --
-- Add choices of contacts.
INSERT INTO consents (org_id, id, contact_id, topic, channel, granted, source, text_sha256, at)
SELECT :org_id ::bigint, id, contact_id, topic, channel, granted, source, text_sha256, at
FROM unnest(:id ::uuid[], :contact_id ::uuid[], :topic ::text[], :channel ::text[], :granted ::boolean[], :source ::text[],
            :text_sha256 ::text[], :at ::timestamptz[])
    AS n (id, contact_id, topic, channel, granted, source, text_sha256, at)
RETURNING true;

-- read_topic_changes --
-- The choices of topics by a contact, or by those that were merged into it, after a moment, oldest first, each with the one before it.
SELECT n.topic, coalesce(n.before, t.opt_in = 'none') AS before, n.granted, n.at
FROM (
    SELECT n.topic, lag(n.granted) OVER (PARTITION BY n.topic ORDER BY n.at, n.id) AS before, n.granted, n.at, n.id
    FROM consents n
    WHERE n.org_id = :org_id AND n.topic IS NOT NULL AND n.contact_id IN (
        SELECT id FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id))
) n
JOIN topics t ON t.org_id = :org_id AND t.name = n.topic
WHERE n.at > :at ::timestamptz
ORDER BY n.at, n.id;

-- find_latest_consent --
-- The latest choice of a topic by a contact, or by those that were merged into it.
SELECT n.id, n.contact_id, n.granted, n.source, n.topic, n.channel, n.text_sha256, n.at
FROM consents n
WHERE n.org_id = :org_id AND n.topic = :topic AND n.contact_id IN (
    SELECT id FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id))
ORDER BY n.at DESC, n.id DESC
LIMIT 1;
