-- The events, in no order: to sort millions by contact is left to whoever reads them.
{% import "backtest_parts.sql" as parts %}
SELECT contact_id, created_at, id, event, payload, sent_wallet_address, {{ parts.address(selection, "sent_email") }} AS sent_email, sent_external_id
FROM app_events
WHERE {{ parts.wanted(selection, whom) }}
