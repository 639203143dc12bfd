"""Chores beside ingest: the clock, statistics of a young database, partitions ahead, counts by hour, and what is kept only for a while."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from api.chores import every
from api.clock import Clock
from api.ingest.counting import count_events, forget_counts
from api.store import upkeep as store
from api.store.database import Database, Transaction
from api.store.inbox import forget_challenges
from api.store.segments import forget_sizes
from api.store.strangers import forget_strangers
from api.store.test_sends import forget_test_pushes, with_old_test_pushes

SOON = 5.0
COUNTED_AGAIN = 60.0
HOURLY = 3_600.0
DAILY = 86_400.0
FORGOTTEN_AT_ONCE = 5_000

_Delete = Callable[[Transaction, int, datetime, int], Awaitable[int]]

_DELETIONS: tuple[_Delete, ...] = (
    store.forget_dry_runs,
    store.forget_notices,
    forget_challenges,
    forget_sizes,
    forget_strangers,
)

_log = logging.getLogger("workbench.upkeep")


async def keep_up(database: Database, clock: Clock) -> None:
    """Do the chores until cancelled."""
    await asyncio.gather(
        every(SOON, "calibrate", lambda: database.calibrate(clock)),
        every(SOON, "analyze", lambda: _analyze(database)),
        every(COUNTED_AGAIN, "count_events", lambda: count_events(database, clock.now())),
        every(HOURLY, "forget_tests", lambda: forget_tests(database, clock.now())),
        every(DAILY, "daily", lambda: _daily(database, clock)),
    )


async def _analyze(database: Database) -> None:
    async with database.transaction() as tx:
        if tables := await store.analyze_new_tables(tx):
            _log.info("analyzed", extra={"tables": tables})


async def _daily(database: Database, clock: Clock) -> None:
    now = clock.now()
    async with database.transaction() as tx:
        await store.add_coming_months(tx, now)
        org_ids = await store.organizations(tx)
    for org_id in org_ids:
        await forget(database, org_id, now)
        await forget_counts(database, org_id, now)


async def forget_tests(database: Database, now: datetime) -> None:
    """Delete the in-app tests of every organization that no wallet took for a day: every hour, so none is there for much longer."""
    async with database.transaction() as tx:
        org_ids = await with_old_test_pushes(tx, now)
    for org_id in org_ids:
        await _forget(database, org_id, now, forget_test_pushes)


async def forget(database: Database, org_id: int, now: datetime) -> None:
    """Delete what an organization keeps only for a while, in transactions of a bounded size."""
    for delete in _DELETIONS:
        await _forget(database, org_id, now, delete)


async def _forget(database: Database, org_id: int, now: datetime, delete: _Delete) -> None:
    deleted = FORGOTTEN_AT_ONCE
    while deleted == FORGOTTEN_AT_ONCE:
        async with database.transaction() as tx:
            deleted = await delete(tx, org_id, now, FORGOTTEN_AT_ONCE)
