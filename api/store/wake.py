"""Waking the engine: the statement of `sql/queries/wake.sql`."""

import asyncio
import contextlib

import psycopg
from psycopg import sql

from api.store.calls import Call, nothing, run, statements
from api.store.database import Transaction, libpq_dsn

ENTRIES_CHANNEL = "workbench_entries"
_RECONNECT_SECONDS = 1.0

_SQL = statements("wake")

WAKE_ENGINE = Call(_SQL["wake_engine"], nothing)
"""Wakes every engine when the transaction commits."""


async def wake_engine(tx: Transaction) -> None:
    """Wake every engine when this transaction commits; nothing is sent when it rolls back."""
    await run(tx, WAKE_ENGINE)


class Listener:
    """Hears the engine's channel on a connection of its own. A hint that is missed costs a poll, never an entry."""

    def __init__(self, dsn: str) -> None:
        self._dsn = libpq_dsn(dsn)
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake whoever waits."""
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Return when woken, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def listen(self) -> None:
        """Listen until cancelled, connecting again whenever the connection is lost."""
        while True:
            with contextlib.suppress(psycopg.Error):
                await self._listen_once()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen_once(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(ENTRIES_CHANNEL)))
            self.wake()
            async for _ in connection.notifies():
                self.wake()
