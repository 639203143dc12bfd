-- Advisory locks, held until the transaction ends.

-- lock_keys --
-- Take locks in the order given (sorted by the caller).
SELECT count(pg_advisory_xact_lock(k)) FROM unnest(:keys ::bigint[]) AS k;

-- share_members --
-- Change which segments single contacts are in, beside others that do.
SELECT pg_advisory_xact_lock_shared(7300454, (:org_id ::bigint % 2147483647) ::integer);

-- hold_members --
-- Wait for all who do, and keep others from beginning.
SELECT pg_advisory_xact_lock(7300454, (:org_id ::bigint % 2147483647) ::integer);

-- take_turn --
-- Wait for an organization's turn at a kind of work.
SELECT pg_advisory_xact_lock(:work ::integer, (:org_id ::bigint % 2147483647) ::integer);

-- try_turn --
-- Take an organization's turn at a kind of work; false: somebody else has it. Nobody waits.
SELECT pg_try_advisory_xact_lock(:work ::integer, (:org_id ::bigint % 2147483647) ::integer);
