"""The partitions of `events` that a history needs."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from api.clock import from_us
from api.store import history as store
from api.store.database import Database, LockedError

OLDEST = datetime(2010, 1, 1, tzinfo=UTC)  # what is older stays outside the months
TRIES = 100
PAUSE = 0.3  # seconds
_DAY_US = 86_400_000_000


class Months:
    """The months an import has met."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._days: set[int] = set()
        self._known: set[datetime] = set()

    async def add(self, ats_us: Iterable[int]) -> set[int]:
        """Make sure that every month of some moments, in microseconds, has its partition; return the ids of who added them."""
        days = {at_us // _DAY_US for at_us in ats_us} - self._days
        self._days |= days
        months = {from_us(day * _DAY_US).replace(day=1) for day in days}
        ids = set[int]()
        for month in sorted(months - self._known):
            self._known.add(month)
            if month >= OLDEST:
                ids |= await self._add(month)
        return ids

    async def _add(self, month: datetime) -> set[int]:
        """Wait for the table of what lies outside the months, which somebody may be reading, without holding up who comes after."""
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._database.transaction() as tx:
                    return await store.month_ids(tx, month) if await store.add_month(tx, month) else set()
            except LockedError:
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE)
        raise AssertionError("the loop above returns or raises")
