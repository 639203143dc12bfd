"""The file in which a client keeps events until the service has accepted them (SQLite).

A committed row survives the end of the process, because it is in a file of the operating system. It is not forced to
the disk, so a row of the last seconds may be lost when the machine loses power.

All processes of a machine may share a file. `sending` is a lock on a second file; it ends with its process.
"""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import SpoolError

_BUSY_TIMEOUT_S = 30.0  # another process writes
_PAGE_BYTES = 4_096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rejected (id INTEGER PRIMARY KEY AUTOINCREMENT, error TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS owner (organization TEXT NOT NULL, test INTEGER NOT NULL);
"""


class WaitingEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that was not accepted yet. Events of one `lane` are sent one after the other."""

    id: int
    lane: int
    body: bytes


class Spool:
    """The waiting and the rejected events of one file. Threads and forked processes may share it.

    Raises SpoolError if the file cannot be opened, written or is larger than `max_bytes`.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._connect()
        _spools.add(self)

    def _connect(self) -> None:
        self._lock = threading.Lock()
        with self._errors():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The file has personal data. SQLite gives its other files the mode of this one.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode = wal")
            self._database.execute("PRAGMA synchronous = off")
            self._database.execute(f"PRAGMA max_page_count = {max(self._max_bytes // _PAGE_BYTES, 16)}")
            self._database.executescript(_SCHEMA)

    def add(self, lane: int, body: bytes) -> None:
        self._execute("INSERT INTO events (lane, body) VALUES (?, ?)", (lane, body))

    def oldest(self, limit: int) -> list[WaitingEvent]:
        rows = self._execute("SELECT id, lane, body FROM events ORDER BY id LIMIT ?", (limit,))
        return [WaitingEvent(*row) for row in rows]

    def newest_id(self) -> int:
        return int(self._execute("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def count(self, last_id: int | None = None) -> int:
        """Return how many events wait, up to an id."""
        bound = (2**63 - 1 if last_id is None else last_id,)
        return int(self._execute("SELECT count(*) FROM events WHERE id <= ?", bound)[0][0])

    def settle(self, accepted: Collection[int], rejected: Sequence[tuple[int, str]]) -> None:
        """Delete the accepted events, and keep the rejected ones with their errors, in one transaction."""
        with self._lock, self._errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany(
                    "INSERT INTO rejected (error, body) SELECT ?, body FROM events WHERE id = ?",
                    [(error, event_id) for event_id, error in rejected],
                )
                gone = [(event_id,) for event_id in (*accepted, *(event_id for event_id, _ in rejected))]
                self._database.executemany("DELETE FROM events WHERE id = ?", gone)
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise

    def rejected(self, limit: int) -> list[tuple[str, bytes]]:
        """Return the errors and the bodies of rejected events, newest first."""
        return self._execute("SELECT error, body FROM rejected ORDER BY id DESC LIMIT ?", (limit,))

    def discard_rejected(self) -> None:
        self._execute("DELETE FROM rejected")

    def belongs_to(self, organization: str, test: bool) -> bool:
        """Return whether the events belong to this organization and kind of key; the first caller owns the file."""
        self._execute("INSERT INTO owner SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM owner)", (organization, int(test)))
        return self._execute("SELECT organization, test FROM owner") == [(organization, int(test))]

    @contextlib.contextmanager
    def sending(self) -> Iterator[bool]:
        """Hold the right to send; yield False if another process, or another client of this one, has it."""
        path = self.path.with_name(f"{self.path.name}-sender")
        lock = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            yield False
        else:
            yield True
        finally:
            lock.close()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock, self._errors():
            return self._database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"{self.path}: {error}. Nothing was changed in it") from None

    def _reconnect(self) -> None:
        # SQLite forbids using or closing a connection of the parent, so it is kept open and unused.
        _inherited.append(self._database)
        self._connect()


_spools: "weakref.WeakSet[Spool]" = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


def _before_fork() -> None:
    for spool in list(_spools):
        spool._lock.acquire()


def _after_fork_in_parent() -> None:
    for spool in list(_spools):
        spool._lock.release()


def _after_fork_in_child() -> None:
    for spool in list(_spools):
        spool._reconnect()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
