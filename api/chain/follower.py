"""Following one node: take the chain's lease, read on from the cursor, and go back where the chain did.

Every node in `WORKBENCH_EVM_RPC` has a follower; of those of one chain the one with the lease works, and the others are there when
it stops, or its node does, or falls behind (`chain.standby`). A frozen follower that wakes writes nothing: each of its transactions begins with the lease.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from api.chain.answers import Block, Kind, NodeError
from api.chain.beginning import something_to_follow
from api.chain.following import Following, WrongChainError
from api.chain.reading import Reader
from api.chain.rpc import Node
from api.chain.standby import Standby
from api.chain.storing import Keeper, LostError
from api.clock import Clock, monotonic_ns
from api.store import chain as store
from api.store.calls import COMMIT, run
from api.store.chain import LEASE, Lease, Taken
from api.store.database import ConflictError, Database, RefusedDataError, UnavailableError

RENEW_EVERY = 1.5
STAND_BY = 1.0
LOOKS = 5  # so often one that stands by tries, before it looks at its node again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
GIVE_UP = 3  # failures of a node after which another may take the chain
AWAY_PAUSE = 1.0

# To every organization: what the node itself says is for the log.
_SAID: dict[Kind, str] = {
    "away": "its node does not answer",
    "limited": "its node wants fewer questions",
    "refused": "its node refuses a question",
    "large": "its node does not say all that is in a block",
}
_log = logging.getLogger("workbench.chain")


class Follower:
    """Follows the chain of one node, until it is cancelled."""

    def __init__(self, database: Database, keeper: Keeper, clock: Clock, node: Node) -> None:
        self._database = database
        self._clock = clock
        self._node = node
        self._reader = Reader(node)  # it learns what the node can take
        self._keeper = keeper
        self._standby = Standby()
        self._failures = 0
        self._chain_id: int | None = None
        self._looked_since = clock.now()

    async def run(self) -> None:
        """Follow; survives nodes and databases that go away."""
        while True:
            with contextlib.suppress(LostError, WrongChainError):
                await self._guarded(self._follow)

    async def _follow(self) -> None:
        """Take the chain and follow it as long as its node answers and the lease is ours."""
        if self._chain_id is not None and await something_to_follow(self._database, self._chain_id):
            self._standby = Standby()  # what it has seen is of before the rest
        chain_id = self._chain_id = await self._node.chain_id()
        taken = await self._turn(chain_id, await self._node.head())
        if taken is None:
            return
        _log.info("chain_taken", extra={"chain": chain_id, "node": self._node.name, "block": taken.block_number})
        following = Following(self._database, self._clock, self._reader, self._keeper, taken, self._looked_since)
        renewing = asyncio.create_task(self._renew(taken.lease))
        failed = 0
        try:
            while failed < GIVE_UP and not renewing.done():
                failed = 0 if await self._guarded(following.go_on, following.note) else failed + 1
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self._leave(taken.lease)

    async def _guarded(
        self, work: Callable[[], Awaitable[None]], note: Callable[[str], Awaitable[None]] | None = None
    ) -> bool:
        """Do a piece of work; what may pass is waited for, longer every time. Return False when the node did not answer."""
        try:
            await work()
        except NodeError as error:
            self._failures += 1
            pause = error.after or min(FIRST_PAUSE * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE)
            extra = {"node": self._node.name, "kind": error.kind, "reason": str(error), "pause": pause}
            _log.warning("node_trouble", extra=extra)
            if note is not None:
                await note(_SAID[error.kind])
            await asyncio.sleep(pause)
            return False
        except ConflictError as error:
            _log.info("page_conflict", extra={"reason": str(error)})
        except RefusedDataError as error:
            _log.error("page_refused", extra={"node": self._node.name, "reason": str(error)})
            if note is not None:
                await note(f"the database refuses what was read: {error}")
            await asyncio.sleep(LONGEST_PAUSE)
        except UnavailableError as error:
            _log.warning("database_away", extra={"reason": str(error)})
            await asyncio.sleep(AWAY_PAUSE)
        else:
            self._failures = 0
        return True

    async def _turn(self, chain_id: int, head: Block) -> Taken | None:
        """Wait until nobody follows the chain, or nobody who gets on; None after a while: then the node is to be looked at again."""
        for _ in range(LOOKS):
            taken = await self._take(chain_id, head)
            if taken is not None:
                return taken
            await asyncio.sleep(STAND_BY)
        return None

    async def _take(self, chain_id: int, head: Block) -> Taken | None:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            taken, read, _ = await run(
                tx, store.take_chain(chain_id, now, now + LEASE), store.chain_read(chain_id), COMMIT
            )
        if taken is not None or read is None or not self._standby.is_stuck(head.number, read, monotonic_ns() / 1e9):
            return taken
        _log.warning(
            "chain_seized", extra={"chain": chain_id, "node": self._node.name, "head": head.number, "read": read}
        )
        async with self._database.transaction() as tx:
            taken, _ = await run(tx, store.take_chain(chain_id, now + 2 * LEASE, now + LEASE), COMMIT)
        return taken

    async def _renew(self, lease: Lease) -> None:
        """Keep the lease while the node takes its time; end when it is lost."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            with contextlib.suppress(UnavailableError, ConflictError):
                async with self._database.transaction() as tx:
                    kept, _ = await run(tx, store.keep_chain(lease, self._clock.now() + LEASE), COMMIT)
                if not kept:
                    return

    async def _leave(self, lease: Lease) -> None:
        with contextlib.suppress(UnavailableError, ConflictError):
            async with self._database.transaction() as tx:
                await run(tx, store.leave_chain(lease, self._clock.now()), COMMIT)
