-- An email of a page whose attempt was not answered, or not recorded, may have arrived. Older processes leave it false, as before.
ALTER TABLE workbench.page_emails ADD COLUMN in_doubt boolean NOT NULL DEFAULT false;
