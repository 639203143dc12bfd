"""Engine processes as a user runs them, and the backlog that they work off."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from bench.figures import Slice
from bench.postgres import SECRET, Database, Postgres, connect, execute
from bench.processes import beside
from bench.timing import timed
from bench.traffic import CONTACTS

STEPS = 4  # in the history of an entry of `automations.thanks`
DUE = (Path(__file__).with_name("fill") / "due_entries.sql").read_bytes()
"""Stores deposits of `count` contacts, each with a due entry of the automation `automation_id`."""
_TIMEOUT_S = 60.0
_PAUSE_S = 0.01
_LEFT = """SELECT EXISTS (SELECT FROM workbench.entries WHERE org_id = 1 AND state = 'pending')
    OR EXISTS (SELECT FROM workbench.entries WHERE org_id = 1 AND state = 'running')"""
_ENDED = """SELECT count(*) FROM workbench.entries e
    JOIN workbench.messages m ON m.org_id = e.org_id AND m.entry_id = e.id
    JOIN (SELECT entry_id FROM workbench.entry_steps GROUP BY entry_id HAVING count(*) = %(steps)s) s
      ON s.entry_id = e.id
    WHERE e.state = 'exited'"""


@contextlib.contextmanager
def engines(server: Postgres, database: Database, count: int) -> Iterator[tuple[int, ...]]:
    """Run engine processes on a database; yield their process ids once all have reported."""
    environment = {"DATABASE_URL": database.dsn, "WORKBENCH_SECRET": SECRET}
    with contextlib.ExitStack() as stack, connect(database.dsn) as connection:
        command, log = ("-m", "api", "engine"), server.home / "engine.log"
        started = [stack.enter_context(beside(*command, log=log, environment=environment)) for _ in range(count)]
        _wait(connection, "SELECT count(*) >= %(count)s FROM workbench.engines", {"count": count})
        yield tuple(process.pid for process in started)


def work_off(server: Postgres, database: Database, pids: Sequence[int], automation_id: str, count: int) -> Slice:
    """Store deposits of many contacts at once; return the slice from then until no entry is left."""
    assert count <= CONTACTS
    execute(database.dsn, sql.SQL("UPDATE workbench.contacts SET tags = '{}'"))
    with connect(database.dsn) as connection:
        connection.execute(DUE, {"count": count, "automation_id": automation_id})
        return timed(server, pids, count, lambda: _wait(connection, f"SELECT NOT ({_LEFT})"))


@contextlib.contextmanager
def accounted(database: Database) -> Iterator[list[Slice]]:
    """Yield a list for slices. At the end, the number of completed entries must equal the sum over the slices."""
    slices: list[Slice] = []
    before = _ended(database)
    yield slices
    worked_off, ended = sum(slice_.accepted for slice_ in slices), _ended(database) - before
    if ended != worked_off:
        raise RuntimeError(f"{worked_off} entries were worked off, {ended} have ended with message and steps")


def _ended(database: Database) -> int:
    with connect(database.dsn) as connection:
        row = connection.execute(_ENDED, {"steps": STEPS}).fetchone()
    assert row is not None
    return int(row[0])


def _wait(connection: psycopg.Connection, question: str, values: dict[str, int] | None = None) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while connection.execute(question.encode(), values).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise RuntimeError(f"still not so after {_TIMEOUT_S:.0f} s: {question}")
        time.sleep(_PAUSE_S)
