-- Up to when an export goes, and when the first event was stored. What is being stored now is left to the next export.
SELECT now() - interval '10 seconds' AS until, (SELECT created_at FROM app_events ORDER BY id LIMIT 1) AS first
