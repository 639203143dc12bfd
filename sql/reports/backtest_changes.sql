-- The changes of these contacts since the beginning of the period, with the moment at which each takes effect, and the event that it
-- belongs to: that of the event that made it, or of the entry whose step made it if it did not wait before, which comes before or
-- after an entry of this automation. A choice of a topic is one, too, and an address that a bounce or complaint closed.
{% import "backtest_macros.sql" as macros %}
SELECT {{ "coalesce(m.contact_id, k.contact_id)" if merged else "k.contact_id" }} AS contact_id, k.changed_at, coalesce(s.at, k.changed_at) AS at, k.field, {{ macros.change(selection, "k.old") }} AS old, {{ macros.change(selection, "k.new") }} AS new,
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
SELECT s.contact_id, s.created_at, s.created_at, 'suppressed', 'false', 'true', '', 0, false, 'person', s.contact_id, NULL
FROM suppressions s
WHERE s.cause IN ('bounced', 'complained') AND s.contact_id IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- endif %}
