-- A standby that answers what analysts ask, and how far it has come.

-- written_up_to --
-- Of the primary: up to where its log has everything that was committed by now, and which cluster it is.
SELECT pg_current_wal_flush_lsn()::text, system_identifier FROM pg_control_system();

-- replayed_up_to --
-- Of the standby: whether it has a primary's log up to there, how many seconds it seems to be behind, and which cluster it is of; nulls
-- of a server that is no standby.
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() >= :lsn ::pg_lsn END,
       CASE WHEN pg_is_in_recovery() THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::double precision END,
       system_identifier
FROM pg_control_system();
