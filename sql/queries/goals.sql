-- How many of those who entered an automation reached its goal. A contact counts once, from the first entry of its life that was let in.

-- list_entries --
-- The next of an automation's entries, from the newest on.
SELECT e.id ::text, coalesce(e.automation_version, 0), e.contact_id ::text, e.event_id ::text, e.event_created_at,
       coalesce(e.outcome = 'holdout', false)
FROM entries e
WHERE e.org_id = :org_id AND e.automation_id = :automation_id AND e.id >= :since_id ::uuid AND e.id < :before_id ::uuid
ORDER BY e.id DESC    -- the column, not its text: that of an index
LIMIT :most;

-- find_first_entries --
-- Of each contact: its first entry that was let in, and whether it has been on both sides, since two contacts became one. An entry was
-- let in when it came as far as a node (or died) and was not refused there: then it was decided on which side it is.
SELECT k.contact_id ::text, (array_agg(e.id ORDER BY e.created_at, e.id))[1] ::text, bool_or(e.held_out) <> bool_and(e.held_out)
FROM unnest(:contact_ids ::uuid[]) AS k (contact_id)
CROSS JOIN LATERAL (
    SELECT e.id, e.created_at, coalesce(e.outcome = 'holdout', false) AS held_out
    FROM entries e
    WHERE e.org_id = :org_id AND e.contact_id = k.contact_id AND e.automation_id = :automation_id
        AND (e.node_id IS NOT NULL OR e.state = 'dead') AND coalesce(e.outcome, '') NOT IN ('reentry', 'loop_guard')
    ORDER BY e.created_at, e.id LIMIT :most    -- the order is that of the index on contacts
) e
GROUP BY k.contact_id;

-- list_goal_events --
-- Of each contact: the next events of the goal's name after an event, until a moment, and the next logs about it that are called so. What
-- they carried only where somebody looks at it; `forms` (none: any) has objects of which the payload contains one.
SELECT k.contact_id ::text, g.at, g.id ::text, g.wallet_address, g.email, g.external_id, g.payload
FROM unnest(:contact_ids ::uuid[], :after_ids ::uuid[], :after ::timestamptz[], :until ::timestamptz[])
    AS k (contact_id, after_id, after, until)
CROSS JOIN LATERAL (
    (SELECT v.created_at AS at, v.id, v.wallet_address, v.email, v.external_id, CASE WHEN :judged THEN v.payload END AS payload
     FROM events v
     WHERE v.org_id = :org_id AND v.contact_id = k.contact_id
         AND v.event || '' = :goal    -- by the contact, not by the name: its index holds the events of everybody
         AND v.created_at >= k.after AND v.created_at <= k.until AND (v.created_at, v.id) > (k.after, k.after_id)
         AND (:forms ::jsonb[] = '{}' OR v.payload @> ANY (:forms ::jsonb[]))
     ORDER BY v.created_at, v.id
     LIMIT :most)
    UNION ALL
    (SELECT o.created_at, o.id, NULL, NULL, NULL, CASE WHEN :judged THEN l.payload END
     FROM onchain_events o
     CROSS JOIN LATERAL (SELECT jsonb_build_object('chainId', o.chain_id, 'contract', o.contract, 'txHash', o.tx_hash, 'logIndex',
                                                   o.log_index, 'blockNumber', o.block_number) || o.args AS payload) l
     WHERE :goal LIKE '0x%:%' AND o.org_id = :org_id AND o.contact_id = k.contact_id AND NOT o.removed
         AND o.contract || ':' || lower(o.event) = :goal
         AND o.created_at >= k.after AND o.created_at <= k.until AND (o.created_at, o.id) > (k.after, k.after_id)
         AND (:forms ::jsonb[] = '{}' OR l.payload @> ANY (:forms ::jsonb[]))
     ORDER BY o.created_at, o.id
     LIMIT :most)
    ORDER BY at, id
    LIMIT :most
) g
ORDER BY 1, 2, 3;
