"""Where reading begins, and while it does not: a chain of which nobody follows anything costs its node nothing.

Blocks of before anything that is followed began are nobody's: they are passed over, however long nothing was followed.
"""

import asyncio
from datetime import datetime

from api.chain.answers import Block, NodeError
from api.chain.rpc import Node
from api.chain.watching import NOTHING, read_watched
from api.store.calls import COMMIT, run
from api.store.database import Database

LOOK_EVERY = 0.5  # seconds


async def something_to_follow(database: Database, chain_id: int) -> bool:
    """Wait until somebody follows something on a chain; return whether that took waiting."""
    watched, waited = NOTHING, False
    while True:
        async with database.transaction() as tx:
            watched = await read_watched(tx, chain_id, watched)
            await run(tx, COMMIT)
        if watched.asked_for:
            return waited
        waited = True
        await asyncio.sleep(LOOK_EVERY)


async def last_before(node: Node, since: datetime, first: int, head: Block) -> Block | None:
    """Return the last block from `first` on whose second is before that of a moment; None: there is none. Raise NodeError."""
    seconds, low, high, found = int(since.timestamp()), first, head.number, None
    while low <= high:
        middle = (low + high) // 2
        block = head if middle == head.number else await node.block(middle)
        if block is None:
            raise NodeError(f"does not have block {middle}", "away")
        if block.seconds < seconds:
            low, found = middle + 1, block
        else:
            high = middle - 1
    return found
