-- Analysts see the entries that continued on another version, and a backtest plays them so.
ALTER TABLE workbench.moves ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.entry_moves ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.entry_moves WITH (security_invoker = true, security_barrier = true) AS
    SELECT e.entry_id, m.automation_id, e.from_version, e.from_node_id, m.version AS to_version, e.node_id AS to_node_id, e.moved_at,
           e.moved_back_at
    FROM workbench.entry_moves e
    JOIN workbench.moves m ON m.org_id = e.org_id AND m.id = e.move_id
    WHERE e.moved_at IS NOT NULL;
