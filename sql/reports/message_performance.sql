-- The results of messages created in the period, by automation, node and channel{{ ", and how many of their contacts did :goal within a span of the sending" if goal }}.
-- `sent` includes delivered messages; `converted` counts contacts, `rate` is their share of the contacts that got a message.
{% import "macros.sql" as macros %}
WITH period_messages AS (
    SELECT m.automation_id, m.node_id, m.channel, m.contact_id, m.status, m.sent_at,
           m.status IN ('sent', 'delivered') AS sent,
           {% if goal %}
           EXISTS (SELECT FROM {{ macros.events(period, "e") }} WHERE e.contact_id = m.contact_id AND e.event = :goal
                   AND e.occurred_at > m.sent_at AND e.occurred_at <= m.sent_at + CAST(:within AS interval)
                   AND e.created_at > m.sent_at - interval '5 minutes') AS converted
           {% else %}
           NULL::boolean AS converted
           {% endif %}
    FROM messages m
    WHERE m.created_at >= {{ macros.since() }} AND m.created_at < {{ macros.until(period) }}{{ macros.of_members(period, "m.") }}
)
SELECT a.name AS automation, m.node_id, m.channel, count(*) AS messages, count(*) FILTER (WHERE m.sent) AS sent,
       count(*) FILTER (WHERE status = 'delivered') AS delivered, count(*) FILTER (WHERE status = 'failed') AS failed,
       count(*) FILTER (WHERE status = 'skipped') AS skipped, count(*) FILTER (WHERE status = 'unknown') AS unknown,
       count(DISTINCT contact_id) FILTER (WHERE sent) AS contacts
       {% if goal %}
       , count(DISTINCT contact_id) FILTER (WHERE sent AND converted) AS converted
       , count(DISTINCT contact_id) FILTER (WHERE sent AND converted)::float8
         / nullif(count(DISTINCT contact_id) FILTER (WHERE sent), 0) AS rate
       {% endif %}
FROM period_messages m
LEFT JOIN automations a ON a.id = m.automation_id
GROUP BY a.id, a.name, m.node_id, m.channel
ORDER BY sent DESC, automation, node_id
