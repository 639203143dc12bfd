-- outside a transaction
-- Drafts and versions that include snippets: whether one does is known without reading the others.
DROP INDEX CONCURRENTLY IF EXISTS workbench.automations_including;
CREATE INDEX CONCURRENTLY automations_including ON workbench.automations (org_id, id) WHERE strpos(graph::text, 'include') > 0;
DROP INDEX CONCURRENTLY IF EXISTS workbench.automation_versions_pinning;
CREATE INDEX CONCURRENTLY automation_versions_pinning ON workbench.automation_versions (org_id, automation_id, version) WHERE graph ? 'snippets';
