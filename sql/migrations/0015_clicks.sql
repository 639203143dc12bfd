-- Emails whose links are replaced by tracked ones when they leave.
ALTER TABLE workbench.messages ADD COLUMN track_clicks boolean NOT NULL DEFAULT false;
