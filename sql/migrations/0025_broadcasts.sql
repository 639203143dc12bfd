-- Analysts see broadcasts and the runs of schedules.
ALTER TABLE workbench.broadcasts ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.broadcasts WITH (security_invoker = true, security_barrier = true) AS
    SELECT id, automation_id, nullif(segment, '') AS segment, scheduled, at, state, contacts, entered, departed, entries, created_at,
           started_at, ended_at
    FROM workbench.broadcasts;
