-- The steps of entries in analysts' SQL, which a backtest compares with its own. `detail` may hold personal data; its cause does not.
CREATE VIEW analyst.entry_steps WITH (security_invoker = true, security_barrier = true) AS
    SELECT entry_id, claim, step, attempt, node_id, kind, at, outcome, handle, detail ->> 'cause' AS cause
    FROM workbench.entry_steps;
