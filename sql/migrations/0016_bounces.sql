-- Bounces of emails and complaints about them. `reason` of a suppression, and the outcome of a message, have checks that older code
-- relies on, so what they cannot say is in columns of its own, and the view shows it as an outcome.
ALTER TABLE workbench.messages ADD COLUMN feedback text;
ALTER TABLE workbench.suppressions ADD COLUMN cause text;
CREATE OR REPLACE VIEW analyst.message_outcomes WITH (security_invoker = true, security_barrier = true) AS
    SELECT message_id, channel,
           CASE WHEN reason IN ('bounced', 'complained') THEN reason ELSE outcome END AS outcome,
           CASE WHEN reason NOT IN ('bounced', 'complained') THEN reason END AS reason, at
    FROM workbench.message_outcomes;
