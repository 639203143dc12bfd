"""What callers are told of a database that ends their sessions."""

import asyncio

import pytest

from api.store.database import Database, Transaction, UnavailableError

SESSION = "SELECT FROM pg_stat_activity WHERE pid = %s"


async def test_a_session_that_ended_while_its_process_was_frozen_is_a_database_away(database_url: str) -> None:
    database = Database(database_url, size=2)
    await database.open()
    async with database.transaction() as other:
        with pytest.raises(UnavailableError):
            await _be_frozen(database, other)
    await database.close()


async def _be_frozen(database: Database, other: Transaction) -> None:
    async with database.transaction() as tx, asyncio.timeout(10):
        await tx.execute("SET idle_in_transaction_session_timeout = 1")
        while (await other.execute(SESSION, (tx.info.backend_pid,))).rowcount:
            await other.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)
