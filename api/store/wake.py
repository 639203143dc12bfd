"""Waking processes that wait: the statement of `sql/queries/wake.sql`, and the ear for notifications."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from api.store.calls import Call, nothing, run, statements
from api.store.database import Transaction, libpq_dsn

ENTRIES_CHANNEL = "workbench_entries"
_RECONNECT_SECONDS = 1.0

FindChannel = Callable[[psycopg.AsyncConnection[TupleRow]], Awaitable[str]]

_SQL = statements("wake")

WAKE_ENGINE = Call(_SQL["wake_engine"], nothing)
"""Wakes every engine when the transaction commits."""


async def wake_engine(tx: Transaction) -> None:
    """Wake every engine when this transaction commits; nothing is sent when it rolls back."""
    await run(tx, WAKE_ENGINE)


async def _entries_channel(_connection: psycopg.AsyncConnection[TupleRow]) -> str:
    return ENTRIES_CHANNEL


class Listener:
    """Hears a channel on a connection of its own. A hint that is missed costs a poll, never an entry.

    `heard` is given the text of every hint, and an empty one after connecting: what was said before is not known.
    """

    def __init__(
        self, dsn: str, channel: FindChannel | None = None, heard: Callable[[str], None] | None = None
    ) -> None:
        self._dsn = libpq_dsn(dsn)
        self._find_channel = channel or _entries_channel
        self._heard = heard
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake whoever waits."""
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Return when woken, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for loses a cancellation that comes with the wake
                await self._woken.wait()
        self._woken.clear()

    async def listen(self) -> None:
        """Listen until cancelled, connecting again whenever the connection is lost."""
        while True:
            with contextlib.suppress(psycopg.Error):
                await self._listen_once()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen_once(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            channel = await self._find_channel(connection)
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._hear("")
            async for notification in connection.notifies():
                self._hear(notification.payload)

    def _hear(self, hint: str) -> None:
        if self._heard is not None:
            self._heard(hint)
        self.wake()
