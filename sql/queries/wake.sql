-- Waking processes that wait. A notification is a hint: whoever waits also looks by itself now and then.

-- wake_engine --
-- Tell every engine, when this transaction commits, that entries are due.
SELECT pg_notify('workbench_entries', '');
