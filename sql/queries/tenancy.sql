-- For whom a transaction acts: the policies of sql/wall.sql ask for it.

-- act_for --
-- See the rows of one organization until the transaction ends.
SELECT set_config('workbench.org', :org, true);
