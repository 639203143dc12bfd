-- When other automations sent contacts messages that count towards a frequency cap. No wait is shorter than a second, so a
-- message that was stored less than a second after the event of its entry was decided at the moment of that event.
{% import "backtest_macros.sql" as macros %}
SELECT m.contact_id, CASE WHEN at_once THEN e.created_at ELSE m.created_at END AS at,
       CASE WHEN at_once THEN e.event_id::text ELSE '' END AS event_id, {{ "m.automation_id > :automation" if own else "false" }} AS is_younger,
       e.merged_from AS member_id
FROM messages m
JOIN automation_entries e ON e.id = m.entry_id
CROSS JOIN LATERAL (SELECT m.created_at < e.created_at + interval '1 second' AS at_once) moment
WHERE m.created_at >= :since AND m.created_at < :until AND m.channel = ANY (:channels) AND m.status NOT IN ('failed', 'skipped')
    {{- " AND (m.automation_id <> :automation" ~ (" OR e.created_at < :began_before" if began_before is defined and began_before) ~ ")" if own }}{{ macros.in_sample(sample, "m.contact_id") }}
