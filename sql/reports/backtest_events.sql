-- The events, unordered: the client sorts millions of rows by contact faster.
{% import "backtest_parts.sql" as parts %}
SELECT contact_id, created_at, id, event, payload, sent_wallet_address, {{ parts.address(selection, "sent_email") }} AS sent_email, sent_external_id
FROM app_events
WHERE {{ parts.selected(selection, sample) }}
