-- The end of an export, and when the first event was stored. Events that are being stored now are left to the next export.
SELECT now() - interval '10 seconds' AS until, (SELECT created_at FROM app_events ORDER BY id LIMIT 1) AS first
