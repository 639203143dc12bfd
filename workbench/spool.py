"""The file in which clients keep events until the service has accepted them (SQLite).

A committed row survives the end of the process, because it is in a file of the operating system. The file is forced to
the disk at each checkpoint only, so rows of the last seconds may be lost when the machine loses power.

All processes of a machine may share a file, also for several organizations. Each event has the fingerprint of the key
that it was tracked with. `register` says to which organization and kind of key a fingerprint belongs, so that events
are sent with a key of the same organization and kind only. `sending` is the right to send of one of these owners.
"""

import contextlib
import hashlib
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import SpoolError

if sys.platform != "win32":
    import fcntl

MAX_REJECTED = 10_000  # the oldest are dropped, so that invalid events cannot fill the file
_BUSY_TIMEOUT_S = 30.0  # another process writes
_PAGE_BYTES = 2_048  # an insert copies two pages into the log of the file: with 4,096 bytes it takes 5 µs longer
_CHECKPOINT_BYTES = 4_096_000
_RESERVE_BYTES = 8_388_608  # for `_transaction`: a full file would otherwise stay full
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rejected (
    id INTEGER PRIMARY KEY AUTOINCREMENT, error TEXT NOT NULL, lane INTEGER NOT NULL, key TEXT NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS keys (fingerprint TEXT PRIMARY KEY, organization TEXT NOT NULL, kind TEXT NOT NULL);
"""
# The keys of the same organization and kind as the key of this connection, and this one itself
_OWN_KEYS = """
CREATE TEMP TABLE own_key (fingerprint TEXT);
CREATE TEMP VIEW own_keys AS
    SELECT fingerprint FROM own_key
    UNION SELECT o.fingerprint FROM keys o JOIN keys k USING (organization, kind)
        JOIN own_key m ON m.fingerprint = k.fingerprint;
"""


class WaitingEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that was not accepted yet. Events of one `lane` are sent one after the other."""

    id: int
    lane: int
    body: bytes


def fingerprint(key: str) -> str:
    """Return what a file keeps of a key, which has 190 random bits."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class Spool:
    """The waiting and the rejected events of one file, as a client with `key` sees them.

    Threads and forked processes may share it. Raises SpoolError if the file cannot be opened or written, or if it has
    reached `max_bytes`.
    """

    def __init__(self, path: Path, key: str, max_bytes: int) -> None:
        self.path = path
        self._key = fingerprint(key)
        self._max_bytes = max(max_bytes, 65_536)
        self._lock = threading.Lock()  # one statement at a time
        self._database: sqlite3.Connection | None = None
        with self._lock, self._errors():
            self._connect()
        _spools.add(self)

    def add(self, lane: int, body: bytes) -> None:
        self._execute("INSERT INTO events (lane, key, body) VALUES (?, ?, ?)", (lane, self._key, body))

    def oldest(self, limit: int) -> list[WaitingEvent]:
        rows = self._execute("SELECT id, lane, body FROM events WHERE key IN own_keys ORDER BY id LIMIT ?", (limit,))
        return [WaitingEvent(*row) for row in rows]

    def newest_id(self) -> int:
        return int(self._execute("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def count(self, last_id: int = 2**63 - 1) -> int:
        """Return how many events wait, up to an id."""
        return int(self._execute("SELECT count(*) FROM events WHERE key IN own_keys AND id <= ?", (last_id,))[0][0])

    def settle(self, accepted: Collection[int], rejected: Sequence[tuple[int, str]]) -> None:
        """Delete the accepted events, and keep the rejected ones with their errors, in one transaction."""
        with self._transaction() as database:
            database.executemany(
                "INSERT INTO rejected (error, lane, key, body) SELECT ?, lane, key, body FROM events WHERE id = ?",
                [(error, event_id) for event_id, error in rejected],
            )
            settled = [(event_id,) for event_id in (*accepted, *(event_id for event_id, _ in rejected))]
            database.executemany("DELETE FROM events WHERE id = ?", settled)
            if rejected:
                database.execute("DELETE FROM rejected WHERE id <= (SELECT max(id) FROM rejected) - ?", (MAX_REJECTED,))

    def rejected(self, limit: int) -> list[tuple[str, bytes]]:
        """Return the errors and the bodies of rejected events, newest first."""
        return self._execute(
            "SELECT error, body FROM rejected WHERE key IN own_keys ORDER BY id DESC LIMIT ?", (limit,)
        )

    def discard_rejected(self) -> None:
        self._execute("DELETE FROM rejected WHERE key IN own_keys")

    def retry_rejected(self) -> None:
        """Let the rejected events wait again, behind the others."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO events (lane, key, body)"
                " SELECT lane, key, body FROM rejected WHERE key IN own_keys ORDER BY id"
            )
            database.execute("DELETE FROM rejected WHERE key IN own_keys")

    def register(self, organization: str, kind: str) -> None:
        """Note to which organization and kind the key belongs."""
        self._execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", (self._key, organization, kind))

    @contextlib.contextmanager
    def sending(self, organization: str, kind: str) -> Iterator[bool]:
        """Hold the right to send of an owner; yield False if another process or client has it."""
        path = self.path.with_name(f"{self.path.name}-{organization}-{kind}")
        if path in _sending:
            yield False
            return
        _sending.add(path)
        try:
            with contextlib.ExitStack() as held:
                with self._errors():
                    is_taken = _take(path, held)
                yield is_taken
        finally:
            _sending.discard(path)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock, self._errors():
            return (self._database or self._connect()).execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that may also write into a full file: it makes room."""
        with self._lock, self._errors():
            database = self._database or self._connect()
            _limit(database, self._max_bytes + _RESERVE_BYTES)
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                database.execute("ROLLBACK")
                raise
            finally:
                _limit(database, self._max_bytes)

    def _connect(self) -> sqlite3.Connection:
        """Open the file; it is closed before a fork, and opened again when it is next used."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file has personal data. SQLite gives its other files the mode of this one.
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a new file
        database.execute("PRAGMA journal_mode = wal")
        database.execute("PRAGMA synchronous = normal")  # a file that is never synced can be destroyed
        database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // _PAGE_BYTES}")
        _limit(database, self._max_bytes)
        database.executescript(_SCHEMA + _OWN_KEYS)
        database.execute("INSERT INTO own_key VALUES (?)", (self._key,))
        self._database = database
        return database

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"{self.path}: {error}. Nothing was changed in it") from None


def _limit(database: sqlite3.Connection, max_bytes: int) -> None:
    ((page_bytes,),) = database.execute("PRAGMA page_size")
    database.execute(f"PRAGMA max_page_count = {max_bytes // page_bytes}")


def _take(path: Path, held: contextlib.ExitStack) -> bool:
    """Lock a file until `held` is closed or the process ends; return whether no other process has it."""
    if sys.platform == "win32":
        lock = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        held.callback(lock.close)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        return True
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    held.callback(os.close, descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a forked process does not inherit it
    except OSError:
        return False
    return True


_spools: "weakref.WeakSet[Spool]" = weakref.WeakSet()
_sending: set[Path] = set()  # what this process sends; the locks of one process do not exclude each other
_forking: list[Spool] = []
no_fork = threading.Lock()  # held by a thread while it imports: a child would have half of a module


def _before_fork() -> None:
    # SQLite counts the connections of a process to a file, and a fork would copy the count, but no locks.
    no_fork.acquire()
    _forking[:] = list(_spools)
    for spool in _forking:
        spool._lock.acquire()
        spool._disconnect()


def _after_fork() -> None:
    for spool in _forking:
        spool._lock.release()
    no_fork.release()


def _after_fork_in_child() -> None:
    _sending.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
