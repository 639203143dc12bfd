-- Advisory locks. All of them are held until the transaction ends.

-- lock_keys --
-- Take locks in the given order; the caller sorts them.
SELECT count(pg_advisory_xact_lock(k)) FROM unnest(:keys ::bigint[]) AS k;

-- share_members --
-- Shared lock: change the segments of single contacts, while other transactions may do the same.
SELECT pg_advisory_xact_lock_shared(7300454, (:org_id ::bigint % 2147483647) ::integer);

-- hold_members --
-- Exclusive lock: wait for all transactions that share it, and keep new ones out.
SELECT pg_advisory_xact_lock(7300454, (:org_id ::bigint % 2147483647) ::integer);

-- share_steps --
-- Shared lock: record steps of entries, or change an automation, while other transactions do the same.
SELECT pg_advisory_xact_lock_shared(7300458, (:org_id ::bigint % 2147483647) ::integer);

-- hold_steps --
-- Exclusive lock: wait for all transactions that share it, and keep new ones out.
SELECT pg_advisory_xact_lock(7300458, (:org_id ::bigint % 2147483647) ::integer);

-- take_turn --
-- Wait for an organization's turn at a kind of work.
SELECT pg_advisory_xact_lock(:work ::integer, (:org_id ::bigint % 2147483647) ::integer);

-- try_turn --
-- Take the turn without waiting; false if another transaction has it.
SELECT pg_try_advisory_xact_lock(:work ::integer, (:org_id ::bigint % 2147483647) ::integer);
