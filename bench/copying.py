"""The reference of batches: the rows that a slice of ingest stored, loaded into the same tables by a bare `COPY`.

A second database on the same server has the same schema, indexes and foreign keys. After each slice, the rows that it
stored are read from every table in Postgres's binary format. Only loading them into the second database, in one
transaction, is timed.
"""

import time
from datetime import datetime
from typing import LiteralString

import psycopg
from psycopg import sql

from bench.figures import Slice
from bench.postgres import Database, Postgres, admin_dsn, connect
from bench.processes import cpu_seconds

TABLES = (
    "contacts",
    "identities",
    "idempotency_keys",
    "events",
    "entries",
)  # in this order every foreign key finds its row
_OUT = "COPY (SELECT * FROM workbench.{table} WHERE created_at >= {since}) TO STDOUT (FORMAT binary)"
_IN = "COPY workbench.{table} FROM STDIN (FORMAT binary)"


def now(database: Database) -> datetime:
    """Return the current time of the database; rows that are stored afterwards have a later time."""
    with connect(database.dsn) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def copy_rows(server: Postgres, source: Database, target: Database, since: datetime) -> Slice:
    """Load the rows that `source` has stored since a time into `target`; return a slice of its events."""
    with connect(source.dsn) as reading:
        rows = {table: _take(reading, table, since) for table in TABLES}
        row = reading.execute("SELECT count(*) FROM workbench.events WHERE created_at >= %s", (since,)).fetchone()
    assert row is not None
    with connect(admin_dsn(server, target)) as writing:
        spent, begun = cpu_seconds(server.pid), time.perf_counter()
        with writing.transaction():
            for table, parts in rows.items():
                _put(writing, table, parts)
        seconds, spent = time.perf_counter() - begun, cpu_seconds(server.pid) - spent
    return Slice(
        requests=1, accepted=row[0], refused=0, seconds=seconds, statuses={}, latencies_ms=[], cpu={"postgres": spent}
    )


def _take(connection: psycopg.Connection, table: str, since: datetime) -> list[bytes]:
    with connection.cursor().copy(_statement(_OUT, table, since=sql.Literal(since))) as copy:
        return [bytes(part) for part in copy]


def _put(connection: psycopg.Connection, table: str, parts: list[bytes]) -> None:
    with connection.cursor().copy(_statement(_IN, table)) as copy:
        for part in parts:
            copy.write(part)


def _statement(template: LiteralString, table: str, **values: sql.Composable) -> sql.Composed:
    return sql.SQL(template).format(table=sql.Identifier(table), **values)
