-- Ties between events of one moment: of the events at `since`, those with a later id came after.
ALTER TABLE workbench.entries ADD COLUMN since_id uuid;
