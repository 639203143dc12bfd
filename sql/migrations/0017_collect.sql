-- Entries whose events joined another one, which collects them, and the time zone of an organization. The API publishes neither
-- `collect` nor a graph with that time zone while an older process is connected.
ALTER TABLE workbench.entries ADD COLUMN joined_entry uuid;
ALTER TABLE workbench.organizations ADD COLUMN timezone text;
