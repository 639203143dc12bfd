-- When other automations sent contacts messages that count towards a frequency cap.
{% import "backtest_parts.sql" as parts %}
SELECT contact_id, created_at
FROM messages
WHERE created_at >= :since AND created_at < :until AND channel = ANY (:channels) AND status NOT IN ('failed', 'skipped')
    {{- " AND automation_id <> :automation" if own }}{{ parts.in_sample(sample, "contact_id") }}
