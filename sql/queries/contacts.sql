-- One contact at a time: finding it, opting out, erasing it, explaining its events, its export and its timeline.

-- Finding a contact ------------------------------------------------------------------------------------------------
-- Emails are sealed.

-- find_contact --
-- A contact, unless it was erased or merged into another. It has also opted out of emails if one of its addresses is
-- suppressed.
SELECT c.id, c.wallet_address, c.wallet_raw, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment) AS segments,
       ARRAY(SELECT unnest(c.opted_out)
             UNION
             SELECT s.channel FROM identities i
             JOIN suppressions s ON s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = i.value_digest
             WHERE i.org_id = :org_id AND i.contact_id = c.id AND i.kind = 2
             ORDER BY 1) AS opted_out,
       (SELECT coalesce(s.cause, s.reason) FROM identities i
        JOIN suppressions s ON s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = i.value_digest
        WHERE i.org_id = :org_id AND i.contact_id = c.id AND i.kind = 2
        ORDER BY s.created_at LIMIT 1) AS suppressed,
       ARRAY(SELECT d.topic FROM declined_topics d WHERE d.org_id = :org_id AND d.contact_id = c.id ORDER BY d.topic) AS declined,
       c.created_at, c.updated_at
FROM contacts c
WHERE c.org_id = :org_id AND c.id = :contact_id AND c.erased_at IS NULL AND c.merged_into IS NULL;

-- find_owner --
-- The contact that owns the first of these identifiers, in the given order. Opted out: as in `find_contact`.
SELECT c.id, c.wallet_address, c.wallet_raw, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m
             WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment) AS segments,
       ARRAY(SELECT unnest(c.opted_out)
             UNION
             SELECT s.channel FROM identities a
             JOIN suppressions s ON s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = a.value_digest
             WHERE a.org_id = :org_id AND a.contact_id = c.id AND a.kind = 2
             ORDER BY 1) AS opted_out,
       ARRAY(SELECT d.topic FROM declined_topics d WHERE d.org_id = :org_id AND d.contact_id = c.id ORDER BY d.topic) AS declined,
       c.created_at, c.updated_at
FROM unnest(:kinds ::smallint[], :digests ::uuid[]) WITH ORDINALITY AS k (kind, digest, position)
JOIN identities i ON i.org_id = :org_id AND i.kind = k.kind AND i.value_digest = k.digest
JOIN contacts c ON c.org_id = :org_id AND c.id = i.contact_id
ORDER BY k.position
LIMIT 1;

-- find_contacts --
-- Contacts by id; erased contacts are left out.
SELECT c.id, c.wallet_address, c.wallet_raw, c.email, c.external_id, c.attributes, c.tags,
       ARRAY(SELECT m.segment FROM segment_members m
             WHERE m.org_id = :org_id AND m.contact_id = c.id ORDER BY m.segment) AS segments,
       c.opted_out,
       ARRAY(SELECT d.topic FROM declined_topics d WHERE d.org_id = :org_id AND d.contact_id = c.id ORDER BY d.topic) AS declined,
       c.created_at, c.updated_at
FROM contacts c
WHERE c.org_id = :org_id AND c.id = ANY (:ids ::uuid[]) AND c.erased_at IS NULL;

-- Opting out -------------------------------------------------------------------------------------------------------

-- set_opted_out --
-- Set the channels that a contact opted out of; its lock is held.
UPDATE contacts SET opted_out = :channels, updated_at = greatest(:at ::timestamptz, updated_at + interval '1 microsecond')
WHERE org_id = :org_id AND id = :contact_id;

-- suppress_emails_of --
-- Suppress the addresses of a contact for emails, also if they belong to another contact later.
INSERT INTO suppressions (org_id, channel, address_digest, reason, created_at)
SELECT org_id, 'email', value_digest, 'opted_out', :at
FROM identities
WHERE org_id = :org_id AND contact_id = :contact_id AND kind = 2
ON CONFLICT (org_id, channel, address_digest) DO NOTHING;

-- lift_suppressions_of --
-- Allow emails to the addresses of a contact again.
DELETE FROM suppressions s
USING identities i
WHERE i.org_id = :org_id AND i.contact_id = :contact_id AND i.kind = 2
    AND s.org_id = :org_id AND s.channel = 'email' AND s.address_digest = i.value_digest;

-- find_email_owner --
-- The contact that owns an email address.
SELECT contact_id FROM identities
WHERE org_id = :org_id AND kind = 2 AND value_digest = :address_digest ::uuid;

-- read_opted_out --
-- The channels that a contact opted out of itself.
SELECT unnest(opted_out) FROM contacts WHERE org_id = :org_id AND id = :contact_id AND erased_at IS NULL;

-- sample_properties --
-- The attributes and tags of the newest contacts, and of those of the newest events. Both are the ends of primary keys.
SELECT attributes, tags FROM contacts
WHERE org_id = :org_id AND merged_into IS NULL AND erased_at IS NULL AND id = ANY (ARRAY(
    (SELECT id FROM contacts WHERE org_id = :org_id ORDER BY id DESC LIMIT :limit)
    UNION
    (SELECT contact_id FROM events WHERE org_id = :org_id AND created_at >= :since ::timestamptz ORDER BY id DESC LIMIT :limit)));

-- Erasure ----------------------------------------------------------------------------------------------------------
-- The rows of an erased contact stay and are counted, without anything that identifies it or shows what it did.

-- find_erasure --
-- When a contact was erased, or null, and the contact it was merged into; no row if the contact does not exist. The
-- third column is true while rows of another contact are on their way back from it (an undone merge): until then
-- they cannot be distinguished.
SELECT erased_at AS at, merged_into, EXISTS (
    SELECT FROM contact_merges m
    WHERE m.org_id = :org_id AND m.keep_id = :contact_id AND m.undone_at IS NOT NULL AND m.due_at IS NOT NULL) AS unsettled
FROM contacts WHERE org_id = :org_id AND id = :contact_id;

-- clear_contact --
-- Clear a contact, and those that were merged into it, except ids and times; its lock is held.
UPDATE contacts
SET email = NULL, email_domain = NULL, wallet_address = NULL, wallet_raw = NULL, external_id = NULL,
    attributes = '{}', replaced = NULL, tags = '{}', opted_out = '{}', updated_at = :at, erased_at = coalesce(erased_at, :at)
WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id);

-- keep_wallet_digests --
-- Keep the blind indexes of its EVM wallets, so that later logs about them make no new contact. Contacts without
-- such a wallet need none.
INSERT INTO erased_wallets (org_id, wallet_digest, erased_at)
SELECT i.org_id, i.value_digest, :at ::timestamptz FROM identities i
WHERE i.org_id = :org_id ::bigint AND i.contact_id = :contact_id ::uuid AND i.kind = 1 AND EXISTS (
    SELECT FROM contacts c
    WHERE c.org_id = :org_id ::bigint AND (c.id = :contact_id ::uuid OR c.merged_into = :contact_id ::uuid)
        AND c.wallet_address ~ '^0x[0-9a-f]{40}$')
ORDER BY i.value_digest
ON CONFLICT (org_id, wallet_digest) DO UPDATE SET erased_at = greatest(erased_wallets.erased_at, excluded.erased_at);

-- delete_sign_in --
-- Delete its pending sign-ins, and test messages about it or to its wallet.
WITH tests AS (
    DELETE FROM test_pushes t USING contacts c
    WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id) AND t.org_id = :org_id
        AND (t.contact_id = c.id OR t.wallet_address = c.wallet_address)
)
DELETE FROM inapp_challenges n USING contacts c
WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id) AND n.org_id = :org_id AND n.wallet_address = c.wallet_address;

-- delete_identities --
-- From now on its identifiers have no owner: an event with one of them makes a new contact.
DELETE FROM identities WHERE org_id = :org_id AND contact_id = :contact_id;

-- delete_conflicts --
-- Delete its conflicts with their digests, and those of contacts that were merged into it.
DELETE FROM identity_conflicts k
USING contacts c
WHERE k.org_id = :org_id AND c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
    AND (k.contact_id = c.id OR k.other_contact_id = c.id);

-- clear_merges --
-- Keep only the fact that it was merged; pending rows are still moved.
UPDATE contact_merges m SET gained = '{}', identities = '[]', absorbed = '{"attributes": {}, "tags": [], "segments": {}}'
FROM contacts c
WHERE m.org_id = :org_id AND c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
    AND (m.keep_id = c.id OR m.absorbed_id = c.id);

-- delete_merge_changes --
-- Delete what its merges changed in the histories of the other contacts: these are values of it, also after an undo. Until the undo, changes
-- by others replaced these values: they get those of before the merge, and lists lose what the merge added.
WITH deleted AS (
    DELETE FROM contact_changes k
    USING contacts c, contact_merges m
    WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
        AND m.org_id = :org_id AND (m.keep_id = c.id OR m.absorbed_id = c.id)
        AND k.org_id = :org_id AND k.contact_id IN (m.keep_id, m.absorbed_id) AND k.cause = 'merge' AND k.cause_id = m.id
        AND k.field <> 'mergedInto'
    RETURNING k.contact_id, k.changed_at, k.field, k.old, k.new, m.undone_at
), gained AS (
    SELECT contact_id, changed_at, undone_at, field, old, new,
           CASE WHEN field IN ('tags', 'optedOut') THEN ARRAY(SELECT jsonb_array_elements_text(new - ARRAY(SELECT jsonb_array_elements_text(old)))) END
               AS items
    FROM deleted WHERE changed_at < undone_at
), corrected AS (
    UPDATE contact_changes k
    SET old = CASE WHEN g.items IS NULL THEN g.old ELSE k.old - g.items END,
        new = CASE WHEN g.items IS NULL THEN k.new ELSE k.new - g.items END
    FROM gained g
    WHERE k.org_id = :org_id AND k.contact_id = g.contact_id AND k.field = g.field
        AND k.changed_at > g.changed_at AND k.changed_at < g.undone_at AND (g.items IS NOT NULL OR k.old = g.new)
)
UPDATE events e
SET replaced = (
    SELECT jsonb_object_agg(r.key, CASE WHEN g.field IS NULL THEN r.value ELSE g.old END) FILTER (WHERE g.field IS NULL OR g.old IS NOT NULL)
    FROM jsonb_each(e.replaced) AS r
    LEFT JOIN gained g ON g.contact_id = s.contact_id AND g.field = 'attributes.' || r.key AND g.new = r.value
        AND e.changed_at > g.changed_at AND e.changed_at < g.undone_at)
FROM (SELECT contact_id, min(changed_at) AS since, max(undone_at) AS until FROM gained GROUP BY contact_id) AS s
JOIN contacts c ON c.org_id = :org_id AND c.id = s.contact_id
WHERE e.org_id = :org_id AND e.contact_id = coalesce(c.merged_into, c.id) AND coalesce(e.merged_from, e.contact_id) = c.id
    AND e.changed_at > s.since AND e.changed_at < s.until;

-- leave_all_segments --
-- Remove it from all segments.
DELETE FROM segment_members WHERE org_id = :org_id AND contact_id = :contact_id;

-- clear_starts --
-- Erase what its starts say.
UPDATE starts SET payload = '{}' WHERE org_id = :org_id AND contact_id = :contact_id AND payload <> '{}';

-- delete_consents --
-- Delete its choices, and those of contacts that were merged into it.
DELETE FROM consents n USING contacts c
WHERE n.org_id = :org_id AND c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id) AND n.contact_id = c.id;

-- unlink_logs --
-- Remove the contact from its logs: the logs are public, their contact is not.
UPDATE onchain_events SET contact_id = NULL WHERE org_id = :org_id AND contact_id = :contact_id;

-- forget_pages --
-- Delete the pages that are kept, because each may show values of the contact. Those that are still to be mailed are made again,
-- and a mailing that is under way ends.
UPDATE page_runs SET html = NULL, email_html = NULL, claim = claim + 1, state = CASE state WHEN 'sending' THEN 'planned' ELSE state END
WHERE org_id = :org_id AND html IS NOT NULL;

-- erase_dry_runs --
-- Erase the payloads and keys of its dry runs (and of contacts that were merged into it), and the same keys in
-- rejected events.
WITH runs AS (
    SELECT d.key_digest, d.idempotency_key FROM contacts c
    JOIN dry_runs d ON d.org_id = :org_id AND d.contact_id = c.id AND d.idempotency_key <> ''
    WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
), notices AS (
    UPDATE event_notices n SET idempotency_key = NULL, body = n.body - 'idempotencyKey'
    FROM runs r
    WHERE n.org_id = :org_id AND n.idempotency_key = r.idempotency_key
)
UPDATE dry_runs d SET payload = '{}', idempotency_key = ''
FROM runs r
WHERE d.org_id = :org_id AND d.key_digest = r.key_digest;

-- cancel_entries_of_contact --
-- Cancel its entries, also those that a worker holds: their leases become void. Queued messages are skipped;
-- messages being sent may arrive.
WITH live AS (
    SELECT id, state FROM entries
    WHERE org_id = :org_id AND contact_id = :contact_id AND state IN ('pending', 'running', 'waiting', 'retrying', 'paused')
    ORDER BY id
    FOR UPDATE
), moved AS (
    UPDATE entries e
    SET state = 'cancelled', outcome = 'contact_erased', lease_token = e.lease_token + 1, lease_until = NULL, updated_at = :at
    FROM live
    WHERE e.org_id = :org_id AND e.id = live.id
    RETURNING e.id, live.state
), logged AS (
    INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)
    SELECT :org_id ::bigint, id, state, 'cancelled', :at ::timestamptz, 'contact_erased' FROM moved
    RETURNING true
), unsent AS (
    UPDATE messages
    SET status = CASE WHEN status = 'queued' AND NOT in_doubt THEN 'skipped' ELSE 'unknown' END
    WHERE org_id = :org_id AND contact_id = :contact_id AND status IN ('queued', 'sending')
    RETURNING id, status, channel
), outcomes AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT :org_id ::bigint, :at ::timestamptz, id, status, channel, 'contact_erased' FROM unsent
    RETURNING true
)
SELECT count(*) FROM moved;

-- erase_events --
-- Erase the payloads, identifiers, changes of attributes and keys of its next events, and the same keys in rejected events; returns
-- where the page ends. The digest of a key is kept for ever, so a retry stays a duplicate.
WITH page AS (
    SELECT created_at, id, idempotency_key FROM events
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
    ORDER BY created_at, id
    LIMIT :limit
), notices AS (
    UPDATE event_notices n SET idempotency_key = NULL, body = n.body - 'idempotencyKey'
    FROM page p
    WHERE n.org_id = :org_id AND n.idempotency_key = p.idempotency_key AND p.idempotency_key <> ''
), cleaned AS (
    UPDATE events v SET payload = '{}', idempotency_key = '', wallet_address = NULL, email = NULL, external_id = NULL,
        attributes = NULL, replaced = NULL, changed_at = NULL
    FROM page p
    WHERE v.org_id = :org_id AND v.id = p.id AND v.created_at = p.created_at AND p.idempotency_key <> ''
)
SELECT created_at AS at, id FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- erase_messages --
-- Erase texts and addresses of its next messages; returns where the page ends.
WITH page AS (
    SELECT created_at, id FROM messages
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
    ORDER BY created_at, id
    LIMIT :limit
), cleaned AS (
    UPDATE messages m SET wallet_address = NULL, recipient = NULL, subject = NULL, body = NULL, extra = NULL
    FROM page p
    WHERE m.org_id = :org_id AND m.id = p.id
        AND num_nonnulls(m.wallet_address, m.recipient, m.subject, m.body, m.extra) > 0
)
SELECT created_at AS at, id FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- erase_entries --
-- Erase the details of its next entries' steps and the request ids; of errors only the first word stays. Returns
-- where the page ends.
WITH page AS (
    SELECT created_at, id FROM entries
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
    ORDER BY created_at, id
    LIMIT :limit
), steps AS (
    UPDATE entry_steps s SET detail = '{}'
    FROM page p
    WHERE s.org_id = :org_id AND s.entry_id = p.id AND s.detail <> '{}'
), moves AS (
    UPDATE entry_transitions t SET reason = split_part(t.reason, ':', 1)
    FROM page p
    WHERE t.org_id = :org_id AND t.entry_id = p.id AND strpos(t.reason, ':') > 0
), errors AS (
    UPDATE entries e SET last_error = split_part(e.last_error, ':', 1), request_id = NULL
    FROM page p
    WHERE e.org_id = :org_id AND e.id = p.id AND (strpos(e.last_error, ':') > 0 OR e.request_id IS NOT NULL)
)
SELECT created_at AS at, id FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- erase_changes --
-- Delete the next changes of the contact, and of those that were merged into it; returns where the page ends.
WITH page AS (
    SELECT k.contact_id, k.changed_at, k.field FROM contact_changes k
    WHERE k.org_id = :org_id AND k.changed_at >= :at ::timestamptz AND k.contact_id = ANY (ARRAY(
        SELECT id FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id)))
    ORDER BY k.changed_at
    LIMIT :limit
), deleted AS (
    DELETE FROM contact_changes k
    USING page p
    WHERE k.org_id = :org_id AND k.contact_id = p.contact_id AND k.changed_at = p.changed_at AND k.field = p.field
)
SELECT changed_at AS at, contact_id AS id FROM page ORDER BY changed_at DESC LIMIT 1;

-- schedule_erasure --
-- Check an erased contact once more, later.
INSERT INTO erasures (org_id, contact_id, due_at) VALUES (:org_id, :contact_id, :due_at)
ON CONFLICT (org_id, contact_id) DO UPDATE SET due_at = excluded.due_at;

-- find_due_erasures --
-- Erased contacts, of any organization, that are due for another check, once all rows of their merges have arrived.
SELECT e.org_id, e.contact_id::text FROM erasures e
WHERE e.due_at <= :now AND NOT EXISTS (
    SELECT FROM contact_merges m WHERE m.org_id = e.org_id AND m.keep_id = e.contact_id AND m.due_at IS NOT NULL)
ORDER BY e.due_at LIMIT :limit;

-- finish_erasure --
-- Record that the check is done, unless the contact was erased again meanwhile.
DELETE FROM erasures WHERE org_id = :org_id AND contact_id = :contact_id AND due_at <= :now;

-- Explaining a contact's events ------------------------------------------------------------------------------------
-- Read-only. SQL only finds the rows; the language decides what they mean.

-- list_recent_events --
-- The newest events of a contact, with dry runs, logs of chains, and starts that concern an automation; emails are sealed. The
-- payload of a log or a start is its parameters.
SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id, source, removed, dry
FROM (
    (SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id, NULL AS source,
            false AS removed, false AS dry
     FROM events
     WHERE org_id = :org_id AND contact_id = :contact_id
     ORDER BY created_at DESC, id DESC LIMIT :limit)
    UNION ALL
    (SELECT id, event, occurred_at, created_at, payload, idempotency_key, NULL, NULL, NULL, NULL, false, true
     FROM dry_runs
     WHERE org_id = :org_id AND contact_id = :contact_id
     ORDER BY created_at DESC, id DESC LIMIT :limit)
    UNION ALL
    (SELECT id, contract_event, occurred_at, created_at, log, idempotency_key, NULL, NULL, NULL, source, removed, false
     FROM starting_events
     WHERE org_id = :org_id AND contact_id = :contact_id AND coalesce(automation_id, :automation_id) = :automation_id
     ORDER BY created_at DESC, id DESC LIMIT :limit)
) e
ORDER BY created_at DESC, id DESC
LIMIT :limit;

-- find_event_of_contact --
-- One event of a contact; it may be a dry run, a log or a start.
SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id, NULL AS source,
       false AS removed, false AS dry
FROM events
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id
UNION ALL
SELECT id, event, occurred_at, created_at, payload, idempotency_key, NULL, NULL, NULL, NULL, false, true
FROM dry_runs
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id
UNION ALL
SELECT id, contract_event, occurred_at, created_at, log, idempotency_key, NULL, NULL, NULL, source, removed, false
FROM starting_events
WHERE org_id = :org_id AND id = :event_id ::uuid AND contact_id = :contact_id;

-- find_entries_of_events --
-- The entries that events started in an automation, with the reason if the entry was refused, and the version if it was moved to one.
SELECT e.event_id, e.id, e.state, e.outcome, CASE WHEN e.started_version IS NOT NULL THEN e.automation_version END AS moved_to,
       (SELECT s.detail ->> 'cause' FROM entry_steps s
        WHERE s.org_id = :org_id AND s.entry_id = e.id AND s.outcome = 'refused'
        ORDER BY s.claim DESC, s.step DESC LIMIT 1) AS cause
FROM unnest(:event_ids ::uuid[]) AS k (event_id)
JOIN entries e ON e.org_id = :org_id AND e.automation_id = :automation_id AND e.event_id = k.event_id;

-- list_activation_changes --
-- When an automation was switched on and off, paused and resumed, in order; after a change while everything was stopped it is paused.
SELECT created_at AS at, CASE
           WHEN detail ? 'stopped' OR action = 'automation.pause' THEN 'paused'
           WHEN action IN ('automation.activate', 'automation.resume') THEN 'live'
           WHEN action = 'automation.archive' THEN 'archived'
           WHEN action <> 'automation.deactivate' AND (detail ->> 'active')::boolean THEN 'live'
           ELSE 'off'
       END AS state, action = 'automation.resume' AND coalesce(detail ->> 'overdue' = 'cancel', false) AS cancels_overdue
FROM audit_log
WHERE org_id = :org_id AND subject_id = :automation_id
    AND (action IN ('automation.activate', 'automation.deactivate', 'automation.archive', 'automation.pause',
                    'automation.resume')
         OR (action IN ('automation.create', 'automation.update') AND detail ? 'active')
         OR detail ? 'stopped')
ORDER BY created_at, id;

-- Export -----------------------------------------------------------------------------------------------------------
-- Everything stored about one contact, page by page.

-- export_events --
-- The next events and starts; emails are sealed.
(SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id, attributes
 FROM events
 WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
 ORDER BY created_at, id
 LIMIT :limit)
UNION ALL
(SELECT id, event, created_at, created_at, payload, event || ':' || id, NULL, NULL, NULL, NULL
 FROM starts
 WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
 ORDER BY created_at, id
 LIMIT :limit)
ORDER BY created_at, id
LIMIT :limit;

-- export_entries --
-- The next entries, with their steps.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event, s.event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('nodeId', s.node_id, 'kind', s.kind, 'at', s.at, 'outcome', s.outcome,
                                                     'handle', s.handle, 'detail', s.detail) ORDER BY s.claim, s.step), '[]')
        FROM entry_steps s WHERE s.org_id = :org_id AND s.entry_id = e.id) AS steps
FROM entries e
LEFT JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id
LEFT JOIN starts s ON s.org_id = e.org_id AND s.id = e.event_id
WHERE e.org_id = :org_id AND e.contact_id = :contact_id AND (e.created_at, e.id) > (:at ::timestamptz, :id ::uuid)
ORDER BY e.created_at, e.id
LIMIT :limit;

-- export_messages --
-- The next messages; the recipient of an email is sealed.
SELECT id, automation_id, entry_id, node_id, channel, status, wallet_address, recipient, subject, body, extra AS data, created_at, sent_at,
       delivered_at
FROM messages
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
ORDER BY created_at, id
LIMIT :limit;

-- export_absorbed --
-- The next contacts that were merged into this one, as they were; emails are sealed. They are in no segment any more.
SELECT id, wallet_address, wallet_raw, email, external_id, attributes, tags, '{}'::text[] AS segments, opted_out, created_at, updated_at
FROM contacts
WHERE org_id = :org_id AND merged_into = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
ORDER BY created_at, id
LIMIT :limit;

-- export_logs --
-- The next logs of chains.
SELECT created_at, id, chain_id, contract, event, signature, tx_hash, log_index, block_number, block_time, removed, contact_id, args
FROM onchain_events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:at ::timestamptz, :id ::uuid)
ORDER BY created_at, id
LIMIT :limit;

-- export_consents --
-- The next choices of a contact, and of those that were merged into it.
SELECT n.at AS created_at, n.id, n.topic, n.channel, n.granted, n.source, n.text_sha256
FROM consents n
WHERE n.org_id = :org_id AND n.contact_id IN (
        SELECT id FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id))
    AND (n.at, n.id) > (:at ::timestamptz, :id ::uuid)
ORDER BY n.at, n.id
LIMIT :limit;

-- Timeline ---------------------------------------------------------------------------------------------------------
-- The history of one contact, newest first: for each kind, the rows before a time and an id.

-- count_contact_rows --
-- How many events, entries, messages and identity conflicts a contact has.
SELECT (SELECT count(*) FROM events WHERE org_id = :org_id AND contact_id = :contact_id) AS events,
       (SELECT count(*) FROM entries WHERE org_id = :org_id AND contact_id = :contact_id) AS entries,
       (SELECT count(*) FROM messages WHERE org_id = :org_id AND contact_id = :contact_id) AS messages,
       (SELECT count(*) FROM identity_conflicts
        WHERE org_id = :org_id AND (contact_id = ANY (family.ids) OR other_contact_id = ANY (family.ids))) AS conflicts
FROM (SELECT array_agg(id) AS ids FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id)) family;

-- timeline_events --
-- Events and starts.
(SELECT id, event, occurred_at, created_at, payload, idempotency_key, wallet_address, email, external_id
 FROM events
 WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
 ORDER BY created_at DESC, id DESC
 LIMIT :limit)
UNION ALL
(SELECT id, event, created_at, created_at, payload, event || ':' || id, NULL, NULL, NULL
 FROM starts
 WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
 ORDER BY created_at DESC, id DESC
 LIMIT :limit)
ORDER BY created_at DESC, id DESC
LIMIT :limit;

-- timeline_entries --
-- Entries, with the names of automation and event. Those of an automation that was not published did nothing.
SELECT e.id, e.automation_id, e.automation_version, e.contact_id, e.event_id, coalesce(v.event, o.event, s.event) AS event, e.state, e.outcome, e.node_id,
       e.attempts, e.last_error, e.due_at, e.created_at, e.updated_at, a.name AS automation
FROM (
    SELECT * FROM entries
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
        AND outcome IS DISTINCT FROM 'no_published_version'
    ORDER BY created_at DESC, id DESC
    LIMIT :limit
) e
JOIN automations a ON a.org_id = :org_id AND a.id = e.automation_id
LEFT JOIN events v ON v.org_id = :org_id AND v.id = e.event_id AND v.created_at = e.event_created_at
LEFT JOIN onchain_events o ON o.org_id = :org_id AND o.id = e.event_id
LEFT JOIN starts s ON s.org_id = :org_id AND s.id = e.event_id
ORDER BY e.created_at DESC, e.id DESC;

-- timeline_messages --
-- Messages, with the last cause or error that their steps recorded.
SELECT m.id, m.automation_id, m.entry_id, m.node_id, m.channel, m.status, m.wallet_address, m.recipient, m.subject, m.body,
       m.extra AS data, m.created_at, m.sent_at, m.delivered_at, a.name AS automation,
       (SELECT coalesce(s.detail ->> 'cause', s.detail ->> 'error') FROM entry_steps s
        WHERE s.org_id = :org_id AND s.entry_id = m.entry_id AND s.node_id = m.node_id
        ORDER BY s.claim DESC, s.step DESC LIMIT 1) AS reason
FROM (
    SELECT * FROM messages
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
    ORDER BY created_at DESC, id DESC
    LIMIT :limit
) m
JOIN automations a ON a.org_id = :org_id AND a.id = m.automation_id
ORDER BY m.created_at DESC, m.id DESC;

-- timeline_conflicts --
-- Identity conflicts on either side, and those of contacts that were merged into it.
SELECT c.created_at, c.id, c.event_id, c.contact_id, c.other_contact_id, c.kind, c.outcome, c.resolved_by
FROM (SELECT array_agg(id) AS ids FROM contacts WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id)) family
JOIN identity_conflicts c ON c.org_id = :org_id AND (c.contact_id = ANY (family.ids) OR c.other_contact_id = ANY (family.ids))
WHERE (c.created_at, c.id) < (:at ::timestamptz, :id ::uuid)
ORDER BY c.created_at DESC, c.id DESC
LIMIT :limit;

-- timeline_merges --
-- Merges into the contact, including undone ones.
SELECT id, keep_id, absorbed_id, gained, identities, absorbed, created_at, undone_at
FROM contact_merges
WHERE org_id = :org_id AND keep_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
ORDER BY created_at DESC, id DESC
LIMIT :limit;

-- timeline_logs --
-- Logs of chains about its wallets.
SELECT created_at, id, chain_id, contract, event, signature, tx_hash, log_index, block_number, block_time, removed, contact_id, args
FROM onchain_events
WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) < (:at ::timestamptz, :id ::uuid)
ORDER BY created_at DESC, id DESC
LIMIT :limit;
