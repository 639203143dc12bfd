-- The organization that a transaction acts for; the policies of sql/row_security.sql read this setting.

-- act_for --
-- Show the rows of one organization until the transaction ends.
SELECT set_config('workbench.org', :org, true);
