-- The contacts of these events with their current attributes, and those that were merged into them since the beginning of the period.
-- Erased contacts are left out.
{% import "backtest_macros.sql" as macros %}
SELECT c.id AS contact_id, c.wallet_address, {{ macros.address(selection, "c.email") }} AS email, c.external_id, c.metadata, c.tags, c.opted_out,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.contact_id = c.id ORDER BY m.segment) AS segments,
       {% if selection.topics %}ARRAY(SELECT d.topic FROM declined_topics d WHERE d.contact_id = c.id AND d.topic = ANY (:topics) ORDER BY d.topic){% else %}'{}'::text[]{% endif %} AS declined,
       c.id AS member_id
FROM contacts c
WHERE c.erased_at IS NULL AND c.id IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- if merged %}

UNION ALL
SELECT m.contact_id, c.wallet_address, {{ macros.address(selection, "c.email") }}, c.external_id, c.metadata, c.tags, c.opted_out, '{}'::text[], {{ ":opt_in_topics::text[]" if selection.topics else "'{}'::text[]" }}, c.id
FROM merged_contacts c
JOIN ({{ macros.absorbed() }}) m ON m.member_id = c.id
WHERE m.contact_id IN (
    {{ macros.contacts(selection, sample, merged) }})
{%- endif %}
