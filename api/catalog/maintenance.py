"""Periodic jobs: they calibrate the clock, analyze new tables, count events, add partitions and delete old rows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from api.catalog.counts import count_events, delete_old_counts
from api.clock import Clock
from api.jobs import every
from api.store import events as store
from api.store.access import list_organizations
from api.store.broadcasts import delete_unsent_starts
from api.store.chain import delete_old_unknown_wallets
from api.store.database import Database, Transaction
from api.store.messages import delete_expired_challenges, delete_old_test_pushes, find_old_test_pushes
from api.store.page_schedules import delete_old_pages
from api.store.receipts import delete_old_approvals, delete_old_receipts
from api.store.segments import delete_old_sizes
from api.store.snippets import delete_old_snippets

CALIBRATE_INTERVAL_S = 5.0
ANALYZE_INTERVAL_S = 5.0
COUNT_INTERVAL_S = 60.0
TEST_MESSAGES_INTERVAL_S = 3_600.0
DAILY_INTERVAL_S = 86_400.0
DELETE_BATCH_ROWS = 5_000  # per transaction, so that its locks are held briefly

_Delete = Callable[[Transaction, int, datetime, int], Awaitable[int]]

_DAILY_DELETIONS: tuple[_Delete, ...] = (
    store.delete_old_dry_runs,
    store.delete_old_notices,
    store.delete_old_misspelt,
    delete_expired_challenges,
    delete_old_sizes,
    delete_old_unknown_wallets,
    delete_unsent_starts,
    delete_old_snippets,
    delete_old_pages,
    delete_old_receipts,
    delete_old_approvals,
)

_log = logging.getLogger("workbench.catalog")


async def run_maintenance(database: Database, clock: Clock) -> None:
    await asyncio.gather(
        every(CALIBRATE_INTERVAL_S, "calibrate", lambda: database.calibrate(clock)),
        every(ANALYZE_INTERVAL_S, "analyze", lambda: _analyze_new_tables(database)),
        every(COUNT_INTERVAL_S, "count_events", lambda: count_events(database, clock.now())),
        every(TEST_MESSAGES_INTERVAL_S, "forget_tests", lambda: delete_test_messages(database, clock.now())),
        every(DAILY_INTERVAL_S, "daily", lambda: _run_daily(database, clock)),
    )


async def delete_expired(database: Database, org_id: int, now: datetime) -> None:
    for delete in _DAILY_DELETIONS:
        await _delete_in_batches(database, org_id, now, delete)


async def delete_test_messages(database: Database, now: datetime) -> None:
    """Delete in-app test messages that no wallet has fetched for a day. Runs hourly."""
    async with database.transaction() as tx:
        org_ids = await find_old_test_pushes(tx, now)
    for org_id in org_ids:
        await _delete_in_batches(database, org_id, now, delete_old_test_pushes)


async def _delete_in_batches(database: Database, org_id: int, now: datetime, delete: _Delete) -> None:
    deleted = DELETE_BATCH_ROWS
    while deleted == DELETE_BATCH_ROWS:
        async with database.transaction() as tx:
            deleted = await delete(tx, org_id, now, DELETE_BATCH_ROWS)


async def _analyze_new_tables(database: Database) -> None:
    async with database.transaction() as tx:
        if tables := await store.analyze_new_tables(tx):
            _log.info("analyzed", extra={"tables": tables})


async def _run_daily(database: Database, clock: Clock) -> None:
    now = clock.now()
    async with database.transaction() as tx:
        await store.add_coming_months(tx, now)
        org_ids = await list_organizations(tx)
    for org_id in org_ids:
        await delete_expired(database, org_id, now)
        await delete_old_counts(database, org_id, now)
