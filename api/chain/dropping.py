"""Taking back what happened in blocks that are no longer in the chain, in steps that each commit.

The first step moves the cursor back and notes above which block logs are to be dropped; until that is done nothing else is read, whoever
follows. So a follower may die between any two steps, and the chain may change its mind again meanwhile.
"""

from collections.abc import AsyncIterator

from api.chain.storing import LostError, Told
from api.clock import Clock
from api.store import chain as store
from api.store.calls import COMMIT, Call, run
from api.store.chain import LEASE, Lease
from api.store.database import Database, Transaction

AT_ONCE = 1_000  # logs


async def move_back(database: Database, clock: Clock, lease: Lease, block: tuple[int, str]) -> None:
    """Move the cursor back to a block (number, hash), the last one that we and the chain have in common; raise LostError."""
    number, now = block[0], clock.now()
    async with database.transaction() as tx:
        await _hold(tx, clock, lease)
        await run(
            tx,
            store.begin_dropping(lease, number),
            store.add_blocks(lease.chain_id, [block] if number >= 0 else []),
            store.forget_blocks(lease.chain_id, number, 0),
            store.advance_chain(lease, number, number, now),
            COMMIT,
        )


async def take_back(database: Database, clock: Clock, lease: Lease, above: int) -> Told:
    """Take back all that happened above a block; raise LostError."""
    logs, entries = 0, 0
    async with database.transaction() as tx:
        org_ids, _ = await run(tx, store.dropped_organizations(lease.chain_id, above), COMMIT)
    for org_id in org_ids:
        async for step in _steps(database, clock, lease, org_id, above):
            logs, entries = logs + step.logs, entries + step.entries
    async with database.transaction() as tx:
        await _hold(tx, clock, lease)
        await run(tx, store.end_dropping(lease), COMMIT)
    return Told(logs, entries)


async def _steps(
    database: Database, clock: Clock, lease: Lease, org_id: int, above: int
) -> AsyncIterator[store.Dropped]:
    """Drop the logs of an organization, so many at once."""
    step = store.Dropped(0, 0, above + 1)
    while step.block_number is not None:
        async with database.transaction() as tx:
            await _hold(tx, clock, lease)
            drop: Call[store.Dropped] = store.drop_logs(
                org_id, lease.chain_id, step.block_number - 1, AT_ONCE, clock.now()
            )
            step, _ = await run(tx, drop, COMMIT)
        yield step


async def _hold(tx: Transaction, clock: Clock, lease: Lease) -> None:
    (kept,) = await run(tx, store.keep_chain(lease, clock.now() + LEASE))
    if not kept:
        raise LostError
