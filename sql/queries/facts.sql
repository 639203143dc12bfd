-- What decisions look at: events and contacts of claimed entries, what happened to the contacts before, what came since.
-- The keys of a batch carry the organization (see `engine.sql`), except where each row is looked up by itself.

-- load_events --
-- The events of claimed entries.
SELECT v.id::text, v.event, v.payload, v.wallet_address, v.email, v.external_id
FROM unnest(:ids ::uuid[], :created ::timestamptz[]) AS k (id, created_at)
CROSS JOIN LATERAL (
    SELECT * FROM events e
    WHERE e.org_id = :org_id ::bigint AND e.id >= k.id AND e.id <= k.id AND e.created_at = k.created_at
    ORDER BY e.id LIMIT 1    -- a range and an order, which only the primary key has: in a new month all indexes look alike
) AS v;

-- load_logs --
-- The logs that started claimed entries, by the entry, with the wallet in the parameter that its version says, and its signature.
SELECT k.id::text, o.event, o.args, o.args ->> (v.trigger_spec ->> 'walletArg'), o.chain_id, o.contract, o.tx_hash, o.log_index,
       o.block_number, v.trigger_spec ->> 'signature'
FROM unnest(:ids ::uuid[], :event_ids ::uuid[], :automation_ids ::uuid[], :versions ::integer[])
    AS k (id, event_id, automation_id, version)
CROSS JOIN LATERAL (
    SELECT * FROM onchain_events WHERE org_id = :org_id ::bigint AND id = k.event_id LIMIT 1    -- key by key
) AS o
LEFT JOIN LATERAL (
    SELECT trigger_spec FROM automation_versions
    WHERE org_id = :org_id ::bigint AND automation_id = k.automation_id AND version = k.version LIMIT 1
) AS v ON true;

-- load_contacts --
-- The contacts of claimed entries, with their segments; those that were erased are missing.
SELECT c.id::text, c.wallet_address, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment || ''),
       c.opted_out
FROM unnest(:ids ::uuid[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT * FROM contacts WHERE org_id = :org_id ::bigint AND id = k.id AND erased_at IS NULL LIMIT 1    -- key by key
) AS c;

-- unsubscribed --
-- Which of these contacts unsubscribed one of their addresses.
WITH k AS MATERIALIZED (SELECT :org_id ::bigint AS org_id, id FROM unnest(:ids ::uuid[]) AS id)
SELECT k.id::text
FROM k JOIN identities i ON i.contact_id = k.id AND i.org_id = k.org_id AND i.kind = 2
CROSS JOIN LATERAL (
    SELECT FROM suppressions s
    WHERE s.org_id = i.org_id AND s.channel = 'email' AND s.address_digest = i.value_digest
    ORDER BY s.address_digest    -- one by one, also where Postgres takes the table for empty
) AS s;

-- automations_now --
-- Which stint these automations are in, why those that no longer run do not, and whether they are paused.
SELECT a.id::text, a.stint,
       CASE WHEN a.archived_at IS NOT NULL THEN 'automation_archived' WHEN NOT a.active THEN 'automation_inactive' END,
       a.paused_at IS NOT NULL
FROM automations a
WHERE a.org_id = :org_id AND a.id = ANY(:ids ::uuid[]);

-- load_graph --
-- The graph of a published version; it never changes.
SELECT graph FROM automation_versions
WHERE org_id = :org_id AND automation_id = :automation_id AND version = :version;

-- read_entered --
-- Of each entry: when the contact last entered the automation, and whether one of those entries has not ended.
-- Another entry counts once it has taken a step or died, and while it is undecided if it was created before this one. Committed in
-- another order than created, two entries still cannot both come first: the later decision sees the step of the earlier.
-- Only the newest count: while one has not ended, a policy that asks for it lets no other take a step.
SELECT k.id::text, entered.at, entered.running
FROM unnest(:ids ::uuid[], :automation_ids ::uuid[], :contact_ids ::uuid[], :created ::timestamptz[])
    AS k (id, automation_id, contact_id, created_at)
CROSS JOIN LATERAL (
    SELECT max(counted.created_at) AS at, bool_or(counted.state IN ('pending', 'running', 'waiting', 'retrying', 'paused')) AS running
    FROM (
        SELECT e.created_at, e.state FROM entries e
        WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id AND e.id <> k.id
            AND (e.step > 0 OR e.state = 'dead' OR (e.state IN ('pending', 'running', 'waiting', 'retrying', 'paused')
                                                    AND (e.created_at, e.id) < (k.created_at, k.id)))
        ORDER BY e.created_at DESC LIMIT :most    -- the order is that of the index on contacts
    ) AS counted
) AS entered
WHERE entered.at IS NOT NULL;

-- count_recent --
-- Of each entry: how many the contact had of the automation in the time before it, up to a number.
SELECT k.id::text, (
    SELECT count(*) FROM (
        SELECT FROM entries e
        WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = k.automation_id
            AND e.created_at > k.created_at - :seconds * interval '1 second'
            AND (e.created_at, e.id) < (k.created_at, k.id)
        ORDER BY e.created_at DESC LIMIT :most    -- the order is that of the index on contacts
    ) AS recent)
FROM unnest(:ids ::uuid[], :automation_ids ::uuid[], :contact_ids ::uuid[], :created ::timestamptz[])
    AS k (id, automation_id, contact_id, created_at);

-- read_messages_at --
-- Of each entry: when messages went to the contact since a moment, from whatever automation; not the one its own node tries to
-- send.
WITH k AS MATERIALIZED (
    SELECT :org_id ::bigint AS org_id, *
    FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :node_ids ::text[], :since ::timestamptz[]) AS k (id, contact_id, node_id, since)
)
SELECT k.id::text, m.created_at
FROM k JOIN messages m ON m.org_id = k.org_id AND m.contact_id = k.contact_id AND m.created_at > k.since
WHERE m.channel IN ('inapp', 'email') AND m.status NOT IN ('failed', 'skipped')
    AND (m.entry_id <> k.id OR m.node_id IS DISTINCT FROM k.node_id)
ORDER BY m.created_at;

-- read_arrivals --
-- Of each entry: the newest events of some names that its contact sent after a moment, and after the event that started it; and the
-- newest logs about it whose contract and event are among the names, where there is a name of that kind.
SELECT k.id::text, a.created_at, a.event, a.wallet_address, a.email, a.external_id, a.payload, a.id::text
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :event_ids ::uuid[], :created ::timestamptz[], :since ::timestamptz[],
            :names ::text[]) AS k (id, contact_id, event_id, created_at, since, names)
CROSS JOIN LATERAL (
    SELECT v.created_at, v.event, v.wallet_address, v.email, v.external_id, v.payload, v.id
    FROM events v
    WHERE v.org_id = :org_id AND v.contact_id = k.contact_id AND v.event = ANY(string_to_array(k.names, ','))
        AND v.created_at >= k.created_at AND v.created_at > coalesce(k.since, '-infinity')
        AND (v.created_at, v.id) > (k.created_at, k.event_id)
    ORDER BY v.created_at DESC, v.id DESC
    LIMIT :most
) AS a
UNION ALL
SELECT k.id::text, a.created_at, a.name, NULL, NULL, NULL, a.payload, a.id::text
FROM unnest(:ids ::uuid[], :contact_ids ::uuid[], :event_ids ::uuid[], :created ::timestamptz[], :since ::timestamptz[],
            :names ::text[]) AS k (id, contact_id, event_id, created_at, since, names)
CROSS JOIN LATERAL (
    SELECT o.created_at, o.contract || ':' || lower(o.event) AS name, o.id,
           jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex', o.log_index,
                              'blockNumber', o.block_number) || o.args AS payload
    FROM onchain_events o
    WHERE k.names LIKE '%0x%:%' AND o.org_id = :org_id AND o.contact_id = k.contact_id AND NOT o.removed
        AND o.contract || ':' || lower(o.event) = ANY(string_to_array(k.names, ','))
        AND o.created_at >= k.created_at AND o.created_at > coalesce(k.since, '-infinity')
        AND (o.created_at, o.id) > (k.created_at, k.event_id)
    ORDER BY o.created_at DESC, o.id DESC
    LIMIT :most
) AS a
ORDER BY 2, 8;
