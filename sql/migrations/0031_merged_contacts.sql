-- A backtest plays contacts that were merged since as the separate ones that they were, so analysts see which contact a row first belonged to.
CREATE OR REPLACE VIEW analyst.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events;

CREATE OR REPLACE VIEW analyst_past.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, email AS sent_email, external_id AS sent_external_id, merged_from
    FROM workbench.events
    WHERE stored_in < (SELECT workbench.past_end()) AND stored_in <> ALL ((SELECT workbench.past_open())::bigint[]);

CREATE OR REPLACE VIEW analyst_direct.app_events WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key,
           wallet_address AS sent_wallet_address, external_id AS sent_external_id, merged_from
    FROM workbench.events;

CREATE OR REPLACE VIEW analyst.automation_entries WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, automation_id, automation_version, contact_id, event_id, state, outcome, node_id, attempts, last_error,
           created_at, updated_at, merged_from
    FROM workbench.entries;

CREATE OR REPLACE VIEW analyst.consents WITH (security_invoker = true, security_barrier = true) AS
    SELECT n.id, coalesce(c.merged_into, n.contact_id) AS contact_id, n.topic, n.channel, n.granted, n.source, n.text_sha256, n.at,
           CASE WHEN c.merged_into IS NOT NULL THEN n.contact_id END AS merged_from
    FROM workbench.consents n
    JOIN workbench.contacts c ON c.org_id = n.org_id AND c.id = n.contact_id;

CREATE VIEW analyst.merged_contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, merged_into, email, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out
    FROM workbench.contacts
    WHERE merged_into IS NOT NULL AND erased_at IS NULL;

CREATE VIEW analyst_direct.merged_contacts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, merged_into, wallet_address, external_id,
           CASE WHEN external_id IS NULL THEN attributes
                ELSE attributes || jsonb_build_object('externalId', external_id) END AS metadata,
           tags, created_at, updated_at, email_domain, opted_out
    FROM workbench.contacts
    WHERE merged_into IS NOT NULL AND erased_at IS NULL;
