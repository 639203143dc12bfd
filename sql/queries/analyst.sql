-- How far the standby that answers analysts' queries has replayed the primary's log.

-- written_up_to --
-- On the primary: the position up to which its log contains everything committed by now, and the cluster's
-- identifier.
SELECT pg_current_wal_flush_lsn()::text, system_identifier FROM pg_control_system();

-- replayed_up_to --
-- On the standby: whether it has replayed the primary's log up to that position, by how many seconds it seems to be
-- behind, and its cluster's identifier; nulls on a server that is not a standby.
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() >= :lsn ::pg_lsn END,
       CASE WHEN pg_is_in_recovery() THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::double precision END,
       system_identifier
FROM pg_control_system();
