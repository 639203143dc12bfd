"""Heartbeats of engine processes, and notifications that wake processes waiting for work.

A notification is only a hint. Every process that waits also polls, so a lost notification costs a poll and never an
entry.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from api.store.database import Transaction, libpq_dsn
from api.store.query import query

_SILENT_AFTER = timedelta(seconds=15)


class Heartbeat(msgspec.Struct, frozen=True):
    """The last heartbeat of an engine, and when the next entry was due at that time."""

    seen_at: datetime
    next_due_at: datetime | None

    def lag_seconds(self, now: datetime) -> float:
        """Return how late the next entry was at the heartbeat, in seconds; for a silent engine, how late it is now."""
        if self.next_due_at is None:
            return 0.0
        # Measured now, an entry that was due right after the heartbeat of a healthy engine would seem late until the
        # next one.
        measured_at = now if self.is_silent(now) else self.seen_at
        return max((measured_at - self.next_due_at).total_seconds(), 0.0)

    def is_silent(self, now: datetime) -> bool:
        """Return whether another heartbeat is overdue."""
        return now - self.seen_at >= _SILENT_AFTER


@query
async def record_heartbeat(tx: Transaction, engine_id: str, now: datetime, next_due_at: datetime | None) -> None: ...


@query
async def remove_engine(
    tx: Transaction, engine_id: str, now: datetime, forgotten_after: timedelta = timedelta(days=1)
) -> None:
    """Remove an engine that stops, and those without a heartbeat for a day."""


@query
async def last_heartbeat(tx: Transaction) -> Heartbeat | None: ...


@query
async def count_engines(tx: Transaction, now: datetime, silent_after: timedelta = _SILENT_AFTER) -> int: ...


ENTRIES_CHANNEL = "workbench_entries"
FindChannel = Callable[[psycopg.AsyncConnection[TupleRow]], Awaitable[str]]
_RECONNECT_S = 1.0


class Listener:
    """Listens to a notification channel on its own connection, and wakes the task that waits.

    `heard` is called with the payload of every notification, and with an empty text after each (re)connect, when
    notifications may have been missed.
    """

    def __init__(
        self, dsn: str, channel: FindChannel | None = None, heard: Callable[[str], None] | None = None
    ) -> None:
        self._dsn = libpq_dsn(dsn)
        self._find_channel = channel
        self._heard = heard
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Return when woken, or after this many seconds."""
        with contextlib.suppress(TimeoutError):
            # `wait_for` would lose a cancellation that arrives together with the wake.
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def listen(self) -> None:
        """Listen until cancelled; reconnect a second after the connection is lost."""
        while True:
            with contextlib.suppress(psycopg.Error):
                connecting = psycopg.AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=5)
                async with await connecting as connection:
                    channel = ENTRIES_CHANNEL if self._find_channel is None else await self._find_channel(connection)
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    self._notify("")
                    async for notification in connection.notifies():
                        self._notify(notification.payload)
            await asyncio.sleep(_RECONNECT_S)

    def _notify(self, payload: str) -> None:
        if self._heard is not None:
            self._heard(payload)
        self.wake()
