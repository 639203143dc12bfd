-- The folder of an organization's parts is given up if no engine has looked after it for an hour: another machine builds them then.
ALTER TABLE workbench.part_progress ADD COLUMN kept_at timestamptz NOT NULL DEFAULT now();
