-- The number of erased contacts.
SELECT count(*) AS erased FROM contacts WHERE erased_at IS NOT NULL
