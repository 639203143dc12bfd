"""Drop the logs of blocks that a reorganization removed from the chain, in steps that each commit.

The first step moves the cursor back and stores the block above which logs must be dropped. No follower reads new blocks
until all of these logs are dropped. A follower may therefore be killed between any two steps, and the chain may be
reorganized again in between.
"""

from collections.abc import AsyncIterator

from api.chain.store import LostError, PageResult
from api.clock import Clock
from api.store import chain as store
from api.store.chain import LEASE_DURATION, FollowerLease
from api.store.database import Database, Transaction
from api.store.query import COMMIT, Call, run

LOGS_PER_STEP = 1_000  # each with its entries, in one transaction


async def move_cursor_back(database: Database, clock: Clock, lease: FollowerLease, block: tuple[int, str]) -> None:
    """Move the cursor back to a block (number, hash), the last one in common with the chain; raise LostError."""
    number, now = block[0], clock.now()
    async with database.transaction() as tx:
        await _renew(tx, clock, lease)
        await run(
            tx,
            store.begin_dropping(lease, number),
            store.add_blocks(lease.chain_id, [block] if number >= 0 else []),
            store.delete_blocks(lease.chain_id, number, 0),
            store.advance_chain(lease, number, number, now),
            COMMIT,
        )


async def drop_above(database: Database, clock: Clock, lease: FollowerLease, block_number: int) -> PageResult:
    """Drop all logs above a block; raise LostError."""
    logs, entries = 0, 0
    async with database.transaction() as tx:
        org_ids, _ = await run(tx, store.find_organizations_above(lease.chain_id, block_number), COMMIT)
    for org_id in org_ids:
        async for step in drop_steps(database, clock, lease, org_id, block_number):
            logs, entries = logs + step.logs, entries + step.entries
    async with database.transaction() as tx:
        await _renew(tx, clock, lease)
        await run(tx, store.end_dropping(lease), COMMIT)
    return PageResult(logs, entries)


async def drop_steps(
    database: Database, clock: Clock, lease: FollowerLease, org_id: int, block_number: int
) -> AsyncIterator[store.DroppedLogs]:
    """Drop the logs of an organization above a block, LOGS_PER_STEP at a time; yield each step."""
    step = store.DroppedLogs(0, 0, block_number + 1)
    while step.block_number is not None:
        async with database.transaction() as tx:
            await _renew(tx, clock, lease)
            drop: Call[store.DroppedLogs] = store.drop_logs(
                org_id, lease.chain_id, step.block_number - 1, LOGS_PER_STEP, clock.now()
            )
            step, _ = await run(tx, drop, COMMIT)
        yield step


async def _renew(tx: Transaction, clock: Clock, lease: FollowerLease) -> None:
    (renewed,) = await run(tx, store.renew_chain(lease, clock.now() + LEASE_DURATION))
    if not renewed:
        raise LostError
