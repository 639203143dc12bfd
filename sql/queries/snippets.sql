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
-- The automations whose draft or live version includes snippets; the language decides which.
SELECT a.id, a.name, CASE WHEN strpos(a.graph ::text, 'include') > 0 THEN a.graph END AS draft, v.version,
       v.graph -> 'snippets' AS pinned
FROM automations a
LEFT JOIN automation_versions v ON v.org_id = a.org_id AND v.automation_id = a.id AND v.version = a.published_version
WHERE a.org_id = :org_id AND a.archived_at IS NULL AND (strpos(a.graph ::text, 'include') > 0 OR v.graph -> 'snippets' IS NOT NULL)
ORDER BY a.name, a.id;
