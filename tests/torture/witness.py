"""A witness in the database: notes every lease on an entry as it is given, renewed and ended, which the product forgets.

It stands beside the product's schema, and is there from the start of a run.
"""

import psycopg

_SCHEMA = """
CREATE SCHEMA torture;
CREATE TABLE torture.leases (
    seq       bigint GENERATED ALWAYS AS IDENTITY,
    entry_id  uuid NOT NULL,
    token     bigint NOT NULL,
    until     timestamptz               -- null: the lease has ended
);
CREATE FUNCTION torture.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = torture, pg_catalog AS $$
BEGIN
    INSERT INTO leases (entry_id, token, until)
    VALUES (NEW.id, NEW.lease_token, CASE WHEN NEW.state = 'running' THEN NEW.lease_until END);
    RETURN NULL;
END $$;
CREATE TRIGGER note_lease AFTER UPDATE ON workbench.entries FOR EACH ROW
    WHEN ((OLD.lease_token, OLD.lease_until, OLD.state) IS DISTINCT FROM (NEW.lease_token, NEW.lease_until, NEW.state))
    EXECUTE FUNCTION torture.note();
"""


async def install(admin_dsn: str) -> None:
    """Let the witness look on."""
    async with await psycopg.AsyncConnection.connect(admin_dsn, autocommit=True) as connection:
        await connection.execute(_SCHEMA)
