-- Snippets: the texts that messages include, in versions.

-- insert_snippet --
-- A new version of a snippet; no row if another request was faster.
INSERT INTO snippets (org_id, name, version, body, created_at, created_by)
VALUES (:org_id, :name, :version, :body, :at, :key_id)
ON CONFLICT (org_id, name, version) DO NOTHING
RETURNING name, version, body, created_at, created_by;

-- list_snippets --
-- The newest version of each snippet, by name; of some names, if given.
SELECT DISTINCT ON (name) name, version, body, created_at, created_by
FROM snippets
WHERE org_id = :org_id AND (:names ::text[] IS NULL OR name = ANY (:names ::text[]))
ORDER BY name, version DESC;

-- summarize_snippets --
-- The newest version of each snippet by name, without its text.
SELECT DISTINCT ON (name) name, version, created_at, created_by FROM snippets WHERE org_id = :org_id ORDER BY name, version DESC;

-- list_snippet_versions --
-- The newest versions of a snippet.
SELECT name, version, body, created_at, created_by
FROM snippets
WHERE org_id = :org_id AND name = :name
ORDER BY version DESC
LIMIT :limit;

-- count_snippets --
-- How many snippets there are.
SELECT count(DISTINCT name) FROM snippets WHERE org_id = :org_id;

-- list_including_automations --
-- The automations whose draft or live version includes snippets; the language decides which. The conditions are those of the indexes
-- automations_including and automation_versions_pinning, word for word, so no other graph is read.
WITH drafts AS MATERIALIZED (
    SELECT id, graph FROM automations WHERE org_id = :org_id AND strpos(graph::text, 'include') > 0
), pinning AS MATERIALIZED (
    SELECT automation_id, version, graph -> 'snippets' AS pinned FROM automation_versions WHERE org_id = :org_id AND graph ? 'snippets'
)
SELECT a.id, a.name, d.graph AS draft, p.version, p.pinned
FROM automations a
LEFT JOIN drafts d ON d.id = a.id
LEFT JOIN pinning p ON p.automation_id = a.id AND p.version = a.published_version
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND (d.id IS NOT NULL OR p.version IS NOT NULL)
ORDER BY a.name, a.id;

-- delete_old_snippets --
-- Delete versions of snippets that were replaced some time ago, and that no version of an automation has pinned.
DELETE FROM snippets s
WHERE s.org_id = :org_id AND (s.name, s.version) IN (
    SELECT o.name, o.version FROM snippets o
    WHERE o.org_id = :org_id
        AND EXISTS (
            SELECT FROM snippets n
            WHERE n.org_id = :org_id AND n.name = o.name AND n.version > o.version AND n.created_at < :now ::timestamptz - :retention ::interval)
        AND NOT EXISTS (
            SELECT FROM automation_versions v
            WHERE v.org_id = :org_id AND v.graph ? 'snippets' AND v.graph -> 'snippets' -> o.name ->> 'version' = o.version ::text)
    LIMIT :limit);
