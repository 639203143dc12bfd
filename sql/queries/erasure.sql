-- Forgetting a contact: its rows stay and are counted, without anything that says who it was or what it did.

-- erased_contact --
-- When a contact was erased, null for one that was not, and what it was merged into; no row for one that nobody knows.
-- While rows of somebody else are on their way back from it, it cannot be told apart.
SELECT erased_at, merged_into::text, EXISTS (
    SELECT FROM contact_merges m
    WHERE m.org_id = :org_id AND m.keep_id = :contact_id AND m.undone_at IS NOT NULL AND m.due_at IS NOT NULL)
FROM contacts WHERE org_id = :org_id AND id = :contact_id;

-- forget_sign_in --
-- Drop what the wallets of a contact were asked to sign, and what authors sent to themselves about it.
WITH tests AS (
    DELETE FROM test_pushes t USING contacts c
    WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id) AND t.org_id = :org_id
        AND (t.contact_id = c.id OR t.wallet_address = c.wallet_address)
)
DELETE FROM inapp_challenges n USING contacts c
WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id) AND n.org_id = :org_id AND n.wallet_address = c.wallet_address;

-- forget_contact --
-- Take everything from a contact, and from those that were merged into it, but ids and moments; its lock is held.
UPDATE contacts
SET email = NULL, email_domain = NULL, wallet_address = NULL, wallet_raw = NULL, external_id = NULL,
    attributes = '{}', tags = '{}', opted_out = '{}', updated_at = :at, erased_at = coalesce(erased_at, :at)
WHERE org_id = :org_id AND (id = :contact_id OR merged_into = :contact_id);

-- keep_wallets --
-- Keep the blind indexes of its wallets, by which logs of chains leave it alone; nothing of contacts without an address of such a chain.
INSERT INTO erased_wallets (org_id, wallet_digest, erased_at)
SELECT i.org_id, i.value_digest, :at ::timestamptz FROM identities i
WHERE i.org_id = :org_id ::bigint AND i.contact_id = :contact_id ::uuid AND i.kind = 1 AND EXISTS (
    SELECT FROM contacts c
    WHERE c.org_id = :org_id ::bigint AND (c.id = :contact_id ::uuid OR c.merged_into = :contact_id ::uuid)
        AND c.wallet_address ~ '^0x[0-9a-f]{40}$')
ORDER BY i.value_digest
ON CONFLICT (org_id, wallet_digest) DO UPDATE SET erased_at = greatest(erased_wallets.erased_at, excluded.erased_at);

-- forget_identities --
-- From here on its identifiers are nobody's: who comes with them is somebody new.
DELETE FROM identities WHERE org_id = :org_id AND contact_id = :contact_id;

-- forget_conflicts --
-- Drop the conflicts it took part in, with the digests of the identifiers; also those of contacts that were merged into it.
DELETE FROM identity_conflicts k
USING contacts c
WHERE k.org_id = :org_id AND c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
    AND (k.contact_id = c.id OR k.other_contact_id = c.id);

-- forget_merges --
-- Of merges that it took part in, nothing but the fact is left; rows that are still on their way are moved all the same.
UPDATE contact_merges m SET gained = '{}', identities = '[]', absorbed = '{"attributes": {}, "tags": [], "segments": {}}'
FROM contacts c
WHERE m.org_id = :org_id AND c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
    AND (m.keep_id = c.id OR m.absorbed_id = c.id);

-- forget_segments --
-- Take it out of every segment.
DELETE FROM segment_members WHERE org_id = :org_id AND contact_id = :contact_id;

-- forget_onchain --
-- What happened on a chain is public; that it was this contact is not.
UPDATE onchain_events SET contact_id = NULL WHERE org_id = :org_id AND contact_id = :contact_id;

-- forget_dry_runs_of --
-- Take what they said from its dry runs (also those of contacts that were merged into it), and their keys from what came under the
-- same.
WITH said AS (
    SELECT d.key_digest, d.idempotency_key FROM contacts c
    JOIN dry_runs d ON d.org_id = :org_id AND d.contact_id = c.id AND d.idempotency_key <> ''
    WHERE c.org_id = :org_id AND (c.id = :contact_id OR c.merged_into = :contact_id)
), notices AS (
    UPDATE event_notices n SET idempotency_key = NULL, body = n.body - 'idempotencyKey'
    FROM said s
    WHERE n.org_id = :org_id AND n.idempotency_key = s.idempotency_key
)
UPDATE dry_runs d SET payload = '{}', idempotency_key = ''
FROM said s
WHERE d.org_id = :org_id AND d.key_digest = s.key_digest;

-- cancel_entries_of --
-- End its entries, also those that a worker holds: its lease is void. What was to be sent is skipped, what is on its way may arrive.
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
), told AS (
    INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT :org_id ::bigint, :at ::timestamptz, id, status, channel, 'contact_erased' FROM unsent
    RETURNING true
)
SELECT count(*) FROM moved;

-- clean_events --
-- Take what they said from its next events, and their keys from what came under the same. Where this page ends.
-- A digest of the key is remembered for ever: a retry stays a duplicate.
WITH page AS (
    SELECT created_at, id, idempotency_key FROM events
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
    ORDER BY created_at, id
    LIMIT :most
), notices AS (
    UPDATE event_notices n SET idempotency_key = NULL, body = n.body - 'idempotencyKey'
    FROM page p
    WHERE n.org_id = :org_id AND n.idempotency_key = p.idempotency_key AND p.idempotency_key <> ''
), cleaned AS (
    UPDATE events v SET payload = '{}', idempotency_key = '', wallet_address = NULL, email = NULL, external_id = NULL
    FROM page p
    WHERE v.org_id = :org_id AND v.id = p.id AND v.created_at = p.created_at AND p.idempotency_key <> ''
)
SELECT created_at, id::text FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- clean_messages --
-- Take texts and addresses from its next messages. Where this page ends.
WITH page AS (
    SELECT created_at, id FROM messages
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
    ORDER BY created_at, id
    LIMIT :most
), cleaned AS (
    UPDATE messages m SET wallet_address = NULL, recipient = NULL, subject = NULL, body = NULL, extra = NULL
    FROM page p
    WHERE m.org_id = :org_id AND m.id = p.id
        AND num_nonnulls(m.wallet_address, m.recipient, m.subject, m.body, m.extra) > 0
)
SELECT created_at, id::text FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- clean_entries --
-- Take what its next entries looked at from their steps, and the ids that callers gave; of errors the first word stays.
-- Where this page ends.
WITH page AS (
    SELECT created_at, id FROM entries
    WHERE org_id = :org_id AND contact_id = :contact_id AND (created_at, id) > (:after_at ::timestamptz, :after_id ::uuid)
    ORDER BY created_at, id
    LIMIT :most
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
SELECT created_at, id::text FROM page ORDER BY created_at DESC, id DESC LIMIT 1;

-- await_erasure --
-- Look at an erased contact once more, later.
INSERT INTO erasures (org_id, contact_id, due_at) VALUES (:org_id, :contact_id, :due_at)
ON CONFLICT (org_id, contact_id) DO UPDATE SET due_at = excluded.due_at;

-- due_erasures --
-- Erased contacts, of any organization, that are to be looked at once more now: when all rows of merges have come to them.
SELECT e.org_id, e.contact_id::text FROM erasures e
WHERE e.due_at <= :now AND NOT EXISTS (
    SELECT FROM contact_merges m WHERE m.org_id = e.org_id AND m.keep_id = e.contact_id AND m.due_at IS NOT NULL)
ORDER BY e.due_at LIMIT :most;

-- end_erasure --
-- That was the last look, unless the contact was erased once more meanwhile.
DELETE FROM erasures WHERE org_id = :org_id AND contact_id = :contact_id AND due_at <= :now;
