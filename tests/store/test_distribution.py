"""Citus can distribute the tables over its nodes, and every server can plan all statements.

On a Citus cluster (`make citus`) the second test is the proof that no statement has a form that Citus refuses.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors

from api.embedded import Server
from api.store.backup import IncompleteDumpError, hold_snapshot
from api.store.database import Transaction, is_coordinator, load_numbered, sql_folder
from tests.servers import database_dsn
from tests.store.test_schema import tenant_tables

_CATALOG = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""
_TRIGGERS = """
    SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND c.relnamespace = 'workbench'::regnamespace    -- Citus has some on tables of its own
"""
_SET_NULL = "SELECT conname FROM pg_constraint WHERE contype = 'f' AND confdeltype IN ('n', 'd')"
_LEADING = """
    SELECT t.relname FROM pg_index i
    JOIN pg_class t ON t.oid = i.indrelid
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = i.indkey[0]
    WHERE i.indisunique AND t.relnamespace = 'workbench'::regnamespace AND t.relname = ANY(%s) AND a.attname <> 'org_id'
"""
_REFERRING = """
    SELECT f.conname FROM pg_constraint f
    JOIN pg_class t ON t.oid = f.conrelid JOIN pg_class r ON r.oid = f.confrelid
    JOIN pg_attribute own ON own.attrelid = t.oid AND own.attnum = f.conkey[1]
    JOIN pg_attribute other ON other.attrelid = r.oid AND other.attnum = f.confkey[1]
    WHERE f.contype = 'f' AND t.relname = ANY(%(spread)s)
      AND (own.attname <> 'org_id' OR (r.relname = ANY(%(spread)s) AND other.attname <> 'org_id'))
"""
_DISTRIBUTED = (
    "SELECT logicalrelid::text, partmethod::text FROM pg_dist_partition WHERE NOT logicalrelid::text ~ 'events_'"
)
_REFERENCE_TABLES = {"api_keys"}  # has org_id, but identifies organizations

# For every type of a parameter, a value that all statements take.
_VALUES = {
    "bigint": "1",
    "smallint": "1",
    "integer": "1",
    "double precision": "1",
    "boolean": "true",
    "interval": "'1 day'",
    "name": "'nobody'",
    "pg_lsn": "'0/0'",
    "uuid": "'00000000-0000-7000-8000-000000000000'",
    "text": "'email'",
    "jsonb": "'{}'",
    "timestamp with time zone": "'2026-11-20T10:00:00Z'",
    "bytea": "decode(repeat('00', 32), 'hex')",
}
# Errors that the values cause, not the form of a statement.
_HARMLESS = (errors.IntegrityError, errors.DataError, errors.UndefinedObject)
_UTILITIES = ("COPY", "SET", "ANALYZE", "CREATE")
_OF_CITUS = {"citus.is_coordinator", "citus.list_workers", "citus.run_on_workers"}


def test_keys_of_distributed_tables_begin_with_the_organization(database_url: str) -> None:
    spread = list(tenant_tables() - _REFERENCE_TABLES)
    with psycopg.connect(database_url) as connection:
        assert connection.execute(_LEADING, (spread,)).fetchall() == []
        assert connection.execute(_REFERRING, {"spread": spread}).fetchall() == []
        # Triggers mark contacts for the parts, which do not exist on Citus: sql/citus.sql drops them.
        assert all(name.startswith("touch_contacts") for (name,) in connection.execute(_TRIGGERS))
        assert connection.execute(_SET_NULL).fetchall() == []


async def test_every_table_is_distributed_or_on_every_node(database_url: str) -> None:
    async with await Transaction.connect(database_url) as tx:
        tables = {name for (name,) in await (await tx.execute(_CATALOG)).fetchall()}
        assert tables >= tenant_tables()
        if not await is_coordinator(tx):
            return  # one Postgres: nothing is distributed
        placed = {
            name.removeprefix("workbench."): distribution
            for name, distribution in await (await tx.execute(_DISTRIBUTED)).fetchall()
        }
    assert placed == {name: "h" if name in tenant_tables() - _REFERENCE_TABLES else "n" for name in tables}


async def test_a_role_that_cannot_read_all_rows_makes_no_backup(postgres: Server, database_url: str) -> None:
    async with hold_snapshot(database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:])) as snapshot:
        assert snapshot.rows == {}
    async with await Transaction.connect(database_url) as tx:
        refusal = pytest.raises(IncompleteDumpError) if await is_coordinator(tx) else nullcontext()
    with refusal:
        async with hold_snapshot(database_url) as snapshot:
            assert snapshot.rows == {}


def test_the_server_plans_every_statement(database_url: str) -> None:
    options = "-c search_path=workbench -c client_min_messages=error -c citus.propagate_set_commands=local"
    with psycopg.connect(database_url, autocommit=True, prepare_threshold=None, options=options) as connection:
        connection.execute("CREATE TEMPORARY TABLE candidates (contact_id uuid)")
        connection.execute("CREATE TEMPORARY TABLE wanted (contact_id uuid)")
        connection.execute("CREATE TEMPORARY TABLE arriving_keys (LIKE idempotency_keys)")
        assert dict(_refused(connection)) == {}


def _refused(connection: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Run every statement with arbitrary values, and roll it back; yield those that the server cannot run."""
    for name, text in _statements():
        if text.startswith(_UTILITIES) or name in _OF_CITUS:
            continue
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL workbench.org = '*'")
                connection.execute(f"PREPARE tried AS {text}".encode())
                connection.execute(f"EXECUTE tried{_values(connection)}".encode())
        except _HARMLESS:
            pass
        except psycopg.Error as error:
            if "violates" not in str(error):  # a Citus worker passes on only the text
                yield name, str(error)
        finally:
            connection.execute("DEALLOCATE ALL")


def _statements() -> Iterator[tuple[str, str]]:
    for path in sorted((sql_folder() / "queries").glob("*.sql")):
        for name, (text, _) in load_numbered(path.stem).items():
            yield f"{path.stem}.{name}", text


def _values(connection: psycopg.Connection) -> str:
    """Return arguments for the prepared statement, by the types of its parameters."""
    (row,) = connection.execute("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'tried'")
    types = [name.removesuffix("[]") for name in row[0]]
    values = [
        f"ARRAY[{_VALUES[plain]}]::{name}" if name != plain else f"{_VALUES[plain]}::{name}"
        for name, plain in zip(row[0], types, strict=True)
    ]
    return f"({', '.join(values)})" if values else ""
