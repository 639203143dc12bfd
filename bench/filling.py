"""Fill a database with events by set-based inserts into the real tables with all their indexes.

Ten million events took a quarter of an hour on two busy cores, and 8 GB of disk in addition to the WAL.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from psycopg import sql

from bench.postgres import Database, Postgres, connect, execute
from bench.traffic import CONTACTS

EVENTS_PER_CONTACT = 20
_CHUNK = 50_000
_CONNECTIONS = 2
_STATEMENTS = Path(__file__).with_name("fill")


def fill(database: Database, events: int, names: Sequence[str] = ("deposit",)) -> None:
    """Store events of these names and a twentieth as many contacts, then update the statistics of Postgres."""
    contacts = events // EVENTS_PER_CONTACT
    _insert(database, "contacts", contacts, {})
    _insert(database, "events", events, {"contacts": contacts, "names": list(names)})
    execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def fill_recipients(database: Database, contacts: int) -> None:
    """Store contacts without events, then update the statistics of Postgres."""
    _insert(database, "recipients", contacts, {})
    execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def fill_names(database: Database, events: int, days: float = 30) -> None:
    """Store events of 200 names, dated over the last days."""
    contacts = events // EVENTS_PER_CONTACT
    _insert(database, "many_events", events, {"contacts": contacts, "events": events, "days": days})
    execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def fill_past(database: Database, events: int, days: float) -> None:
    """Store contacts, and events of 200 names, dated over the last days."""
    _insert(database, "contacts", events // EVENTS_PER_CONTACT, {})
    fill_names(database, events, days)


def add_events(database: Database, events: int, stored: int, before: int) -> None:
    """Store new events, each of another contact, in a database with so many stored events and `before` new ones."""
    _insert(database, "new_events", events, {"contacts": stored // EVENTS_PER_CONTACT, "before": before})


def fill_journeys(database: Database, events: int) -> None:
    """Store signups, page views and payments of a twentieth as many contacts."""
    contacts = events // EVENTS_PER_CONTACT
    _insert(database, "contacts", contacts, {})
    _insert(database, "journeys", events, {"contacts": contacts})
    execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def settle(server: Postgres) -> None:
    """Write all filled pages to disk, so that their checkpoint does not happen during the measurement."""
    execute(server.admin_dsn, sql.SQL("CHECKPOINT"))


def fill_fastapi(dsn: str) -> None:
    """Add the returning contacts to the database of the FastAPI endpoint."""
    with connect(dsn) as connection:
        connection.execute(_statement("fastapi_contacts"), {"last": CONTACTS - 1})
    execute(dsn, sql.SQL("VACUUM ANALYZE"))


def _statement(name: str) -> bytes:
    return (_STATEMENTS / f"{name}.sql").read_bytes()


def _insert(database: Database, what: str, count: int, values: dict[str, Any]) -> None:
    statement = _statement(what)
    chunks = [(first, min(first + _CHUNK, count + 1) - 1) for first in range(1, count + 1, _CHUNK)]
    over = threading.Event()

    def insert(mine: Iterable[tuple[int, int]]) -> None:
        with connect(database.dsn) as connection:
            for first, last in mine:
                if over.is_set():
                    return
                connection.execute(statement, {"first": first, "last": last, **values})

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        try:
            list(threads.map(insert, [chunks[start::_CONNECTIONS] for start in range(_CONNECTIONS)]))
        finally:
            over.set()  # an error in one thread ends the other one, too
