-- Contacts as they were. The bodies name tables, which the caller may read only through its views' columns and policies.
CREATE FUNCTION analyst.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, email text, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[], opted_out text[],
               created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (     -- of each field, the first change after the moment
        SELECT DISTINCT ON (k.contact_id, k.field) k.contact_id, k.field, k.old
        FROM workbench.contact_changes k
        WHERE k.changed_at > moment
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
    SELECT c.id,
           CASE WHEN b.fields ? 'email' THEN b.fields ->> 'email' ELSE c.email END,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(s.names, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN before b ON b.contact_id = c.id
    LEFT JOIN segments s ON s.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;

CREATE FUNCTION analyst_direct.contacts_at(moment timestamptz)
RETURNS TABLE (id uuid, wallet_address text, external_id text, metadata jsonb, tags text[], segments text[], opted_out text[],
               created_at timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH later AS (     -- of each field, the first change after the moment
        SELECT DISTINCT ON (k.contact_id, k.field) k.contact_id, k.field, k.old
        FROM workbench.contact_changes k
        WHERE k.changed_at > moment AND k.field <> 'email'
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
    SELECT c.id,
           CASE WHEN b.fields ? 'walletAddress' THEN b.fields ->> 'walletAddress' ELSE c.wallet_address END,
           own.external_id,
           (c.attributes - coalesce(b.changed_attributes, '{}')) || coalesce(b.attributes, '{}')
           || CASE WHEN own.external_id IS NULL THEN '{}' ELSE jsonb_build_object('externalId', own.external_id) END,
           CASE WHEN b.fields ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'tags')) ELSE c.tags END,
           coalesce(s.names, '{}'),
           CASE WHEN b.fields ? 'optedOut' THEN ARRAY(SELECT jsonb_array_elements_text(b.fields -> 'optedOut')) ELSE c.opted_out END,
           c.created_at
    FROM workbench.contacts c
    LEFT JOIN before b ON b.contact_id = c.id
    LEFT JOIN segments s ON s.contact_id = c.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN b.fields ? 'externalId' THEN b.fields ->> 'externalId' ELSE c.external_id END AS external_id) own
    WHERE c.created_at <= moment AND c.erased_at IS NULL
        AND CASE WHEN b.fields ? 'mergedInto' THEN b.fields ->> 'mergedInto' ELSE c.merged_into::text END IS NULL;
END;
