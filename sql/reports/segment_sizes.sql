-- The size of a segment after each change, and how many contacts entered and left; the last row is the last refresh.
WITH changes AS (
    SELECT at, size, entered, departed
    FROM segment_sizes
    WHERE segment = :segment
)
SELECT * FROM changes
UNION ALL
SELECT refreshed_at, size, 0, 0
FROM segments
WHERE name = :segment AND refreshed_at > (SELECT max(at) FROM changes)
ORDER BY at
