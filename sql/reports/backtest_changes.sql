-- The changes of these contacts since the beginning of the period, with the moment at which each takes effect, and the event that it
-- belongs to: that of the event that made it, or of the entry whose step made it if it did not wait before, which comes before or
-- after an entry of this automation. A choice of a topic is one, too, and an address that a bounce or complaint closed, or that was closed
-- before the contact had it.
{% import "backtest_macros.sql" as macros %}
SELECT {{ "coalesce(m.contact_id, k.contact_id)" if merged else "k.contact_id" }} AS contact_id, k.changed_at, coalesce(s.at, k.event_at, k.changed_at) AS at, k.field, {{ macros.change(selection, "k.old") }} AS old, {{ macros.change(selection, "k.new") }} AS new,
       CASE WHEN k.cause = 'event' THEN k.cause_id::text WHEN s.at = e.created_at THEN e.event_id::text ELSE '' END AS event_id,
       CASE WHEN k.cause = 'event' THEN 0 WHEN {{ "e.automation_id > :automation" if own else "false" }} THEN 2 ELSE 1 END AS "order",
       {{ "coalesce(e.automation_id = :automation" ~ (" AND e.created_at >= :since" if live) ~ ", false)" if own else "false" }} AS is_own, k.cause,
       k.contact_id AS member_id, CASE WHEN k.cause = 'merge' THEN k.cause_id::text END AS merge_id
FROM contact_changes k
{{ "LEFT JOIN (" ~ macros.absorbed() ~ ") m ON m.member_id = k.contact_id" if merged }}
LEFT JOIN automation_entries e ON k.cause = 'step' AND e.id = k.cause_id
LEFT JOIN LATERAL (
    SELECT max(s.at) AS at FROM entry_steps s
    WHERE s.entry_id = e.id AND s.kind IN ('add_tag', 'remove_tag', 'update_contact') AND s.at <= k.changed_at) s ON true
WHERE k.changed_at >= :since AND {{ "coalesce(m.contact_id, k.contact_id)" if merged else "k.contact_id" }} IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- if selection.topics %}

UNION ALL
SELECT n.contact_id, n.at, n.at, 'topics.' || n.topic, n.before::text, n.granted::text, '', 0, false, 'person', n.member_id, NULL
FROM (SELECT n.*, coalesce(n.merged_from, n.contact_id) AS member_id,
             coalesce(lag(n.granted) OVER (PARTITION BY coalesce(n.merged_from, n.contact_id), n.topic ORDER BY n.at, n.id),
                      n.topic <> ALL (:opt_in_topics::text[])) AS before
      FROM consents n WHERE n.topic = ANY (:topics)) n
WHERE {{ "true" if merged else "n.at >= :since" }} AND n.contact_id IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- endif %}
{%- if selection.addresses %}

UNION ALL
SELECT s.contact_id, s.created_at, CASE WHEN d.at_once THEN d.created_at ELSE s.created_at END, 'suppressed', 'false', 'true',
       CASE WHEN d.at_once THEN d.event_id::text ELSE '' END,
       CASE WHEN d.at_once THEN {{ "CASE WHEN d.automation_id > :automation THEN 2 ELSE 1 END" if own else "1" }} ELSE 0 END,
       {{ "coalesce(d.automation_id = :automation AND d.created_at >= :since, false)" if own and live else "false" }}, 'person', s.contact_id, NULL
FROM suppressions s
-- The delivery that closed it. As in backtest_messages.sql, a message that was sent at once was decided at the moment of the event.
-- OFFSET 0 keeps Postgres from joining whole tables for each address: it looks the rows up by their keys.
LEFT JOIN LATERAL (
    SELECT e.automation_id, e.event_id, e.created_at, f.attempt = 1 AND m.created_at < e.created_at + interval '1 second' AS at_once
    FROM message_outcomes o
    CROSS JOIN LATERAL (SELECT * FROM messages WHERE id = o.message_id AND contact_id = s.contact_id OFFSET 0) m
    CROSS JOIN LATERAL (SELECT * FROM automation_entries WHERE id = m.entry_id OFFSET 0) e
    CROSS JOIN LATERAL (SELECT * FROM entry_steps WHERE entry_id = e.id AND node_id = m.node_id AND at = o.at OFFSET 0) f
    WHERE o.at = s.created_at AND o.reason = 'gone' AND o.channel = 'email'
    LIMIT 1) d ON true
WHERE (s.cause IN ('bounced', 'complained') OR s.created_at < (SELECT c.created_at FROM contacts c WHERE c.id = s.contact_id)) AND s.contact_id IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- endif %}
