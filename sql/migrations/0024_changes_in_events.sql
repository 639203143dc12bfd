-- The changes that an event of live ingest makes to attributes of its contact are stored in its own row. Earlier rows of
-- `contact_changes` stay. While older processes are connected they write theirs, too; no change is in both.
ALTER TABLE workbench.events ADD COLUMN attributes jsonb, ADD COLUMN replaced jsonb, ADD COLUMN changed_at timestamptz;
ALTER TABLE workbench.contacts ADD COLUMN replaced jsonb;
CREATE INDEX events_changed ON ONLY workbench.events (org_id, changed_at) WHERE changed_at IS NOT NULL;

CREATE OR REPLACE VIEW analyst.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id FROM workbench.contact_changes
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, jsonb_object_keys(attributes) AS key FROM workbench.events
          WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

CREATE OR REPLACE VIEW analyst_direct.contact_changes WITH (security_invoker = true, security_barrier = true) AS
    SELECT contact_id, changed_at, field, old, new, cause, cause_id FROM workbench.contact_changes WHERE field <> 'email'
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id
    FROM (SELECT contact_id, changed_at, replaced, attributes, id, jsonb_object_keys(attributes) AS key FROM workbench.events
          WHERE merged_from IS NULL AND changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key
    UNION ALL
    SELECT f.contact_id, f.changed_at, 'attributes.' || f.key, f.replaced -> f.key, f.attributes -> f.key, 'event', f.id
    FROM (SELECT c.id AS contact_id, e.changed_at, e.replaced, e.attributes, e.id, jsonb_object_keys(e.attributes) AS key
          FROM workbench.contacts c
          JOIN workbench.events e ON e.org_id = c.org_id AND e.contact_id = c.merged_into AND e.merged_from = c.id
          WHERE c.merged_into IS NOT NULL AND e.changed_at IS NOT NULL) AS f
    WHERE f.replaced -> f.key IS DISTINCT FROM f.attributes -> f.key;

CREATE FUNCTION workbench.earlier_values(moment timestamptz)
RETURNS TABLE (contact_id uuid, fields jsonb, attributes jsonb, changed_attributes text[], segments text[])
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (     -- of each field, the first change after the moment
        SELECT DISTINCT ON (k.contact_id, k.field) k.contact_id, k.field, k.old
        FROM (
            SELECT k.contact_id, k.changed_at, k.field, k.old FROM workbench.contact_changes k
            WHERE k.changed_at > moment AND k.field <> 'email'
            UNION ALL
            SELECT e.contact_id, e.changed_at, 'attributes.' || e.key, e.replaced -> e.key
            FROM (SELECT coalesce(merged_from, contact_id) AS contact_id, changed_at, replaced, attributes,
                         jsonb_object_keys(attributes) AS key
                  FROM workbench.events
                  WHERE changed_at > moment) AS e
            WHERE e.replaced -> e.key IS DISTINCT FROM e.attributes -> e.key
        ) AS k
        ORDER BY k.contact_id, k.field, k.changed_at
    ), before AS (
        SELECT l.contact_id,
               jsonb_object_agg(l.field, l.old) AS fields,
               coalesce(jsonb_object_agg(substr(l.field, 12), l.old) FILTER (WHERE l.field ^@ 'attributes.' AND l.old IS NOT NULL), '{}')
                   AS attributes,
               coalesce(array_agg(substr(l.field, 12)) FILTER (WHERE l.field ^@ 'attributes.'), '{}') AS changed_attributes
        FROM later l
        GROUP BY l.contact_id
    ), memberships AS (
        SELECT m.contact_id, m.segment
        FROM workbench.segment_members m
        WHERE m.entered_at <= moment
            AND NOT EXISTS (SELECT FROM later l WHERE l.contact_id = m.contact_id AND l.field = 'segments.' || m.segment)
        UNION ALL
        SELECT l.contact_id, substr(l.field, 10) FROM later l WHERE l.field ^@ 'segments.' AND l.old = 'true'
    ), segments AS (
        SELECT m.contact_id, array_agg(m.segment ORDER BY m.segment) AS names FROM memberships m GROUP BY m.contact_id
    )
    SELECT coalesce(b.contact_id, s.contact_id), b.fields, b.attributes, b.changed_attributes, s.names
    FROM before b
    FULL JOIN segments s ON s.contact_id = b.contact_id;
END;

CREATE OR REPLACE FUNCTION analyst.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, email text, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[],
               opted_out text[], created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (
        SELECT DISTINCT ON (k.contact_id) k.contact_id, k.old
        FROM workbench.contact_changes k
        WHERE k.changed_at > moment AND k.field = 'email'
        ORDER BY k.contact_id, k.changed_at
    )
    SELECT c.id,
           CASE WHEN l.contact_id IS NULL THEN c.email ELSE l.old #>> '{}' END,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(b.segments, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN workbench.earlier_values(moment) b ON b.contact_id = c.id
    LEFT JOIN later l ON l.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;

CREATE OR REPLACE FUNCTION analyst_direct.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[], opted_out text[],
               created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.id,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(b.segments, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN workbench.earlier_values(moment) b ON b.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;
