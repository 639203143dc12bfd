-- Fingerprints of the chains of secrets (api/crypto.py) with which processes may use this database, in one row: one fingerprint, and
-- during a rotation that of the next phase, too.
CREATE TABLE workbench.root_secrets (
    is_only_row   boolean PRIMARY KEY DEFAULT true CHECK (is_only_row),
    fingerprints  text[] NOT NULL
);
