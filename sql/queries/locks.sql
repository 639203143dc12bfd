-- Advisory locks, held until the transaction ends.

-- lock_keys --
-- Take locks in the order given (sorted by the caller).
SELECT count(pg_advisory_xact_lock(k)) FROM unnest(:keys ::bigint[]) AS k;
