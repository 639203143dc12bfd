-- Analysts see which contacts have a suppressed address, and why. The digests of the addresses are read, but not shown.
ALTER TABLE workbench.identities ENABLE ROW LEVEL SECURITY;
ALTER TABLE workbench.suppressions ENABLE ROW LEVEL SECURITY;

CREATE VIEW analyst.suppressions WITH (security_invoker = true, security_barrier = true) AS
    SELECT DISTINCT s.channel, i.contact_id, coalesce(s.cause, s.reason) AS cause, s.created_at
    FROM workbench.suppressions s
    JOIN workbench.identities i ON i.org_id = s.org_id AND i.kind = 2 AND i.value_digest = s.address_digest
    WHERE s.channel = 'email';
