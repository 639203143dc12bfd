"""One transaction for one operator's command, with the database's time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from api.clock import Clock
from api.store.checkup import must_answer
from api.store.database import Database, Transaction


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[tuple[Transaction, datetime]]:
    """Give a transaction, committed at a clean exit, and the moment it happens at; raise UnavailableError saying why."""
    await must_answer(dsn)
    database = Database(dsn, size=1)
    await database.open()
    try:
        now = await database.calibrate(Clock())
        async with database.transaction() as tx:
            yield tx, now
    finally:
        await database.close()
