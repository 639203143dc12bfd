-- Entries of one contact in the order of the timeline.
ALTER TABLE workbench.entries ADD COLUMN since_id uuid, ADD COLUMN turn_at timestamptz;
