-- Since when a segment exists (null: it does not), and how many changes of its members from the beginning of a period on are older
-- than the first one in the history of contacts.
SELECT s.created_at, h.begins_at,
       (SELECT coalesce(sum(z.entered + z.departed), 0)::bigint FROM segment_sizes z
        WHERE z.segment = :start_segment AND z.at >= :since AND z.at < :until AND z.at < coalesce(h.begins_at, now())) AS unrecorded
FROM (SELECT min(changed_at) AS begins_at FROM contact_changes WHERE cause = 'refresh') h
LEFT JOIN segments s ON s.name = :start_segment
