-- How large a segment was after each of its changes, and how many contacts entered and left.
SELECT at, size, entered, departed
FROM segment_sizes
WHERE segment = :segment
ORDER BY at
