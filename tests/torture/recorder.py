"""A second schema in the database, `torture`, with triggers that record what the product does not keep.

It records every lease as it is granted, renewed and ended; events, dry runs, messages, steps and conflicts as they were
first written, because an erasure empties them later; and every erasure. It is created before the run, next to the
product's schema.
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
CREATE FUNCTION torture.note() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = torture, pg_catalog AS $$
BEGIN
    INSERT INTO leases (entry_id, token, until)
    VALUES (NEW.id, NEW.lease_token, CASE WHEN NEW.state = 'running' THEN NEW.lease_until END);
    RETURN NULL;
END $$;
CREATE TRIGGER note_lease AFTER UPDATE ON workbench.entries FOR EACH ROW
    WHEN ((OLD.lease_token, OLD.lease_until, OLD.state) IS DISTINCT FROM (NEW.lease_token, NEW.lease_until, NEW.state))
    EXECUTE FUNCTION torture.note();

CREATE TABLE torture.erasures (
    org_id      bigint NOT NULL,
    contact_id  uuid NOT NULL
);
CREATE FUNCTION torture.note_erasure() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = torture, pg_catalog AS $$
BEGIN
    INSERT INTO erasures VALUES (NEW.org_id, NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER note_erasure AFTER UPDATE ON workbench.contacts FOR EACH ROW
    WHEN (NEW.erased_at IS NOT NULL) EXECUTE FUNCTION torture.note_erasure();
"""

_KEPT = {
    "events": ("org_id", "id", "contact_id", "payload", "idempotency_key", "wallet_address", "email", "external_id"),
    "dry_runs": ("org_id", "id", "contact_id", "payload", "idempotency_key"),
    "messages": ("org_id", "id", "contact_id", "wallet_address", "recipient", "subject", "body"),
    "entry_steps": ("org_id", "entry_id", "claim", "step", "detail"),
    "identity_conflicts": ("org_id", "event_id", "contact_id", "other_contact_id", "kind", "outcome"),
}
_FIRST = """
CREATE TABLE torture.{table} AS SELECT {columns} FROM workbench.{table} WITH NO DATA;
CREATE FUNCTION torture.note_{table}() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = torture, pg_catalog AS $$
BEGIN
    INSERT INTO {table} SELECT {new};
    RETURN NULL;
END $$;
CREATE TRIGGER note_first AFTER INSERT ON workbench.{table} FOR EACH ROW EXECUTE FUNCTION torture.note_{table}();
"""

_FOR_BACKUPS = """
GRANT USAGE ON SCHEMA torture TO workbench;
GRANT SELECT ON ALL TABLES IN SCHEMA torture TO workbench;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA torture TO workbench;
"""


async def install(admin_dsn: str) -> None:
    """Create the schema and its triggers."""
    async with await psycopg.AsyncConnection.connect(admin_dsn, autocommit=True) as connection:
        await connection.execute(_SCHEMA)
        for table, columns in _KEPT.items():
            new = ", ".join(f"NEW.{column}" for column in columns)
            statement = _FIRST.format(table=table, columns=", ".join(columns), new=new)
            await connection.execute(statement.encode())
        await connection.execute(_FOR_BACKUPS)
