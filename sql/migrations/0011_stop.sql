-- Everything that runs can be stopped at once, and resumed.
ALTER TABLE workbench.automation_epochs ADD COLUMN stopped_at timestamptz;
