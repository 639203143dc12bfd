"""The process `workbench chain`: follow the chain of every node in WORKBENCH_EVM_RPC, and store the watched logs.

Each node has a follower. If a chain has several nodes, only the follower that holds the chain's lease reads it
(`ChainFollower`). The others stand by: they take over when it stops, when its node fails, or when it makes no progress
(`Standby`). A suspended follower that resumes writes nothing, since each of its transactions begins by checking the
lease.

A chain without watches is not read, and costs its node nothing. Blocks from before the first watch began are skipped.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from api import process
from api.auth.keys import operator_transaction
from api.chain.logs import LogKey, org_logs
from api.chain.read import NEAR_BLOCKS, ForkError, NodeReader
from api.chain.rpc import Block, EvmNode, NodeError, NodeErrorKind
from api.chain.watch import NO_WATCHES, ChainWatches, read_watches
from api.chain.write import (
    BlockPage,
    LostLeaseError,
    PageResult,
    PageWriter,
    WatchesChangedError,
    drop_above,
    move_cursor_back,
)
from api.clock import Clock, monotonic_ns
from api.crypto import Keyring
from api.jobs import every
from api.store import chain as store
from api.store.chain import LEASE_DURATION, ChainLease, DeadLogRow
from api.store.database import (
    Database,
    DatabaseUnavailableError,
    RefusedDataError,
    TransactionConflictError,
    with_application_name,
)
from api.store.query import COMMIT, run
from workbench.language.responses import ChainView

CALIBRATE_INTERVAL_S = 5.0
POLL_INTERVAL_S = 0.5  # while nothing is watched
RENEW_INTERVAL_S = 1.5
STANDBY_INTERVAL_S = 1.0
STANDBY_ATTEMPTS = 5  # to claim the chain, before the follower requests the head of its own node again
STUCK_AFTER_S = 30.0  # without progress, another follower takes the chain
MIN_RETRY_S, MAX_RETRY_S = 0.5, 30.0  # the pause after a node's error; doubled after each further one
DATABASE_RETRY_S = 1.0
MAX_NODE_FAILURES = 3  # in a row; then the lease is released, so that a follower with a better node may take it
MIN_HEAD_INTERVAL_S, MAX_HEAD_INTERVAL_S = 0.2, 2.0  # bounds of the pause before the next look at the head
STALE_HEAD_S, STALE_HEAD_BLOCKS = 60.0, 20  # the head is stale after the longer of this time and this many blocks
MAX_LISTED_DEAD_LOGS = 1_000

_STATEMENT_TIMEOUT_MS = 60_000  # all logs of a block are stored in one transaction

# Every organization sees these; the node's own message may name its provider, so it is only logged.
_PROBLEM_BY_KIND: dict[NodeErrorKind, str] = {
    "unavailable": "the node does not respond",
    "rate_limited": "the node limits the request rate",
    "refused": "the node refuses a request",
    "too_large": "the node does not return all logs of a block",
}

_log = logging.getLogger("workbench.chain")


def follow(urls: Sequence[str], dsn: str, secret: str, max_contacts_per_hour: int) -> None:
    """Follow the chains of some nodes until SIGTERM or SIGINT."""
    keyring = Keyring(secret)
    writer = PageWriter(keyring, max_contacts_per_hour)
    process.run(_follow_nodes(urls, with_application_name(dsn, keyring.tag()), writer))


async def list_chains(dsn: str) -> list[ChainView]:
    """Return how far each chain was read, and what prevents progress."""
    async with operator_transaction(dsn) as (tx, now):
        return await store.list_chains(tx, now)


async def list_dead_logs(dsn: str) -> list[DeadLogRow]:
    """Return the newest logs that could not be stored, of all organizations."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.list_dead_logs(tx, MAX_LISTED_DEAD_LOGS)


async def _follow_nodes(urls: Sequence[str], dsn: str, writer: PageWriter) -> None:
    # Two connections per follower: it renews its lease while it writes a page.
    database, clock = Database(dsn, 2 * len(urls) + 1, _STATEMENT_TIMEOUT_MS, hot=True), Clock()
    nodes = [EvmNode(url) for url in urls]
    await database.open()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tasks = [asyncio.create_task(every(CALIBRATE_INTERVAL_S, "calibrate", lambda: database.calibrate(clock)))]
    tasks += [asyncio.create_task(Follower(database, writer, clock, node).run()) for node in nodes]
    stopped = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    # A page under way is rolled back; the next follower reads it again.
    for task in (*tasks, stopped):
        task.cancel()
    await asyncio.gather(*tasks, stopped, return_exceptions=True)
    for node in nodes:
        await node.close()
    await database.close()
    for task in done:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()  # a bug ends the process with its traceback; the supervisor starts it again


class Follower:
    """Follows the chain of one node until it is cancelled."""

    def __init__(self, database: Database, writer: PageWriter, clock: Clock, node: EvmNode) -> None:
        self._database = database
        self._clock = clock
        self._node = node
        self._reader = NodeReader(node)  # kept from lease to lease, because it learns what the node accepts
        self._writer = writer
        self._standby = Standby()
        self._node_failures = 0
        self._chain_id: int | None = None
        self._started_at = clock.now()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(LostLeaseError, WrongChainError):
                await self._attempt(self._follow_chain)

    async def _follow_chain(self) -> None:
        """Claim the chain, and follow it while its node responds and the lease is ours."""
        if self._chain_id is not None and await wait_for_watches(self._database, self._chain_id):
            self._standby = Standby()  # its observations are from before the wait
        chain_id = self._chain_id = await self._node.chain_id()
        claim = await self._wait_for_claim(chain_id, await self._node.head())
        if claim is None:
            return
        _log.info("chain_claimed", extra={"chain": chain_id, "node": self._node.name, "block": claim.block_number})
        chain_follower = ChainFollower(self._database, self._clock, self._reader, self._writer, claim, self._started_at)
        renewing = asyncio.create_task(self._keep_renewing(claim))
        failures = 0
        try:
            while failures < MAX_NODE_FAILURES and not renewing.done():
                succeeded = await self._attempt(chain_follower.step, chain_follower.set_problem)
                failures = 0 if succeeded else failures + 1
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
                async with self._database.transaction() as tx:
                    await run(tx, store.release_chain(claim, self._clock.now()), COMMIT)

    async def _attempt(
        self, work: Callable[[], Awaitable[None]], set_problem: Callable[[str], Awaitable[None]] | None = None
    ) -> bool:
        """Do a piece of work, and pause after errors that may pass. Return False if the node failed."""
        try:
            await work()
        except NodeError as error:
            self._node_failures += 1
            pause_s = error.retry_after_s or min(MIN_RETRY_S * 2 ** min(self._node_failures - 1, 10), MAX_RETRY_S)
            extra = {"node": self._node.name, "kind": error.kind, "reason": str(error), "pause": pause_s}
            _log.warning("node_error", extra=extra)
            if set_problem is not None:
                await set_problem(_PROBLEM_BY_KIND[error.kind])
            await asyncio.sleep(pause_s)
            return False
        except TransactionConflictError as error:
            _log.info("page_conflict", extra={"reason": str(error)})
        except RefusedDataError as error:
            _log.error("page_refused", extra={"node": self._node.name, "reason": str(error)})
            if set_problem is not None:
                await set_problem(f"the database refuses the blocks: {error}")
            await asyncio.sleep(MAX_RETRY_S)
        except DatabaseUnavailableError as error:
            _log.warning("database_unavailable", extra={"reason": str(error)})
            await asyncio.sleep(DATABASE_RETRY_S)
        else:
            self._node_failures = 0
        return True

    async def _wait_for_claim(self, chain_id: int, head: Block) -> ChainLease | None:
        """Wait until the chain is free or its follower is stuck; return None after STANDBY_ATTEMPTS."""
        for _ in range(STANDBY_ATTEMPTS):
            now = self._clock.now()
            lease_until = now + LEASE_DURATION
            async with self._database.transaction() as tx:
                claim, read, _ = await run(
                    tx, store.claim_chain(chain_id, now, lease_until), store.last_read_block(chain_id), COMMIT
                )
            if claim is None and read is not None and self._standby.is_stuck(head.number, read, monotonic_ns() / 1e9):
                extra = {"chain": chain_id, "node": self._node.name, "head": head.number, "read": read}
                _log.warning("chain_taken_over", extra=extra)
                async with self._database.transaction() as tx:
                    # `claim_chain` takes only leases that have ended, so pass a time after the end of the current one.
                    claim, _ = await run(tx, store.claim_chain(chain_id, now + 2 * LEASE_DURATION, lease_until), COMMIT)
            if claim is not None:
                return claim
            await asyncio.sleep(STANDBY_INTERVAL_S)
        return None

    async def _keep_renewing(self, lease: ChainLease) -> None:
        """Renew the lease while the node responds slowly; return when it is lost."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
                async with self._database.transaction() as tx:
                    renewed, _ = await run(tx, store.renew_chain(lease, self._clock.now() + LEASE_DURATION), COMMIT)
                if not renewed:
                    return


class Standby:
    """The observations of a follower that stands by: the head of its node, and the last block that was read.

    After STUCK_AFTER_S, the working follower is stuck if it has not reached the observed head, and is no closer to the
    current head either: a follower that catches up keeps its chain.
    """

    def __init__(self) -> None:
        self._observed: tuple[float, int, int] | None = None

    def is_stuck(self, head: int, read: int, monotonic_s: float) -> bool:
        if self._observed is None or read >= self._observed[1]:
            self._observed = monotonic_s, head, read
            return False
        observed_s, earlier_head, earlier_read = self._observed
        if monotonic_s - observed_s < STUCK_AFTER_S:
            return False
        self._observed = monotonic_s, head, read
        return head - read >= earlier_head - earlier_read


class WrongChainError(Exception):
    """The node now serves another chain than before."""


class ChainFollower:
    """Reads one chain from its cursor, during one lease."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        reader: NodeReader,
        writer: PageWriter,
        claim: ChainLease,
        started_at: datetime,
    ) -> None:
        """`started_at`: when this process began to look for watches."""
        self._database = database
        self._clock = clock
        self._node = reader.node
        self._writer = writer
        self._reader = reader
        self._lease = claim
        self._has_cursor = claim.block_number is not None
        self._last: tuple[int, str] | None = None  # the last block that was read
        self._dropping_above = claim.dropping_above
        self._watches = NO_WATCHES
        self._head: Block | None = None
        self._problem: str | None = ""  # unknown: the previous follower may have stored one
        self._seconds_per_block = 0.0
        self._started_at = started_at
        self._skipped_epoch = 0

    async def step(self) -> None:
        """Read the next blocks, or handle a reorganization, or pause if there is nothing to read."""
        if self._dropping_above is not None:
            await self._drop(self._dropping_above)
        async with self._database.transaction() as tx:
            self._watches = await read_watches(tx, self._lease.chain_id, self._watches)
            await run(tx, COMMIT)
        if not self._watches.requested:
            await self.set_problem(None)
            await asyncio.sleep(POLL_INTERVAL_S)
            return
        head = await self._node.head()
        if self._head is not None and head.number > self._head.number:
            # The follower pauses for a quarter of this time: it finds new blocks soon, on slow and on fast chains.
            self._seconds_per_block = (head.seconds - self._head.seconds) / (head.number - self._head.number)
        self._head = head
        try:
            last = await self._skip_unwatched(await self._cursor(head), head)
            if head.number > last[0]:
                watches = self._watches
                async for page in self._reader.pages(watches, last, head):
                    watches = await self._write(watches, page)
                await self.set_problem(self._stale_head(head))
            elif not await self._is_read(head, last):
                await self._reorganize(head)
            else:
                pause_s = min(max(self._seconds_per_block / 4, MIN_HEAD_INTERVAL_S), MAX_HEAD_INTERVAL_S)
                await asyncio.sleep(pause_s)
        except ForkError:
            await self._reorganize(head)
        except WatchesChangedError:  # the next step requests the logs of the new watches, too
            return

    async def set_problem(self, problem: str | None) -> None:
        """Store what prevents progress, or None. Every organization sees it."""
        if problem == self._problem:
            return
        with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
            async with self._database.transaction() as tx:
                await run(tx, store.set_chain_problem(self._lease, problem), COMMIT)
            self._problem = problem

    def _stale_head(self, head: Block) -> str | None:
        """Return a problem if the head is old: a stuck node and a quiet chain look alike from here."""
        age_s = self._clock.now().timestamp() - head.seconds
        if age_s <= max(STALE_HEAD_S, STALE_HEAD_BLOCKS * self._seconds_per_block):
            return None
        return f"no new block since {datetime.fromtimestamp(head.seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"

    async def _cursor(self, head: Block) -> tuple[int, str]:
        """Return the last block that was read, as (number, hash)."""
        if self._last is None and self._has_cursor:
            blocks = await self._stored_blocks()
            self._last = blocks[-1] if blocks else (-1, "")
        if self._last is None:
            # A chain that was never read is read from its head, since older blocks are history. If the first watch
            # began while this process was running, it is read from there, so that no log since then is missed.
            first, start, since = await self._node.block(0), head, self._watches.since
            if first is not None and since is not None and since > self._started_at:
                start = await find_last_block_before(self._node, since, 0, head) or first
            # The first block is stored, too: it distinguishes this chain from another one with the same id (a fresh
            # test chain).
            blocks = [(0, first.hash)] if first is not None and start.number else []
            page = BlockPage(start.number, start.number, head.number, [], [*blocks, (start.number, start.hash)])
            await self._write(self._watches, page)
            self._has_cursor = True
        assert self._last is not None
        return self._last

    async def _skip_unwatched(self, last: tuple[int, str], head: Block) -> tuple[int, str]:
        """Skip the blocks from before the first watch began; return the last block that counts as read."""
        watches, since = self._watches, self._watches.since
        # Once per epoch: finding the block takes some twenty requests. Near the head, reading is cheaper than
        # searching.
        if since is None or head.number - last[0] <= NEAR_BLOCKS or watches.epoch == self._skipped_epoch:
            return last
        block = await find_last_block_before(self._node, since, last[0] + 1, head)
        first = await self._node.block(last[0] + 1)
        if first is not None and last[1] and first.parent_hash != last[1]:
            raise ForkError
        if block is not None:
            await self._write(watches, BlockPage(last[0], block.number, head.number, [], [(block.number, block.hash)]))
        self._skipped_epoch = watches.epoch
        assert self._last is not None
        return self._last

    async def _write(self, watches: ChainWatches, page: BlockPage) -> ChainWatches:
        """Store a page that was read for `watches`; return the current watches."""
        try:
            result = await self._write_once(watches, page)
        except RefusedDataError:
            # A log that the database refuses must not block the chain for all organizations: only this log becomes
            # dead.
            await self._write_once(watches, msgspec.structs.replace(page, trial=frozenset()))
            dead = await self._find_refused(
                watches, page, [log.key for log in org_logs(watches, page.logs, self._clock.now())]
            )
            for (org_id, tx_hash, log_index), reason in dead.items():
                location = {"chain": self._lease.chain_id, "tx": tx_hash, "log_index": log_index}
                _log.error("log_dead", extra={**location, "org": org_id, "reason": reason})
            result = await self._write_once(watches, msgspec.structs.replace(page, dead=dead))
        self._last = page.blocks[-1]
        if result.logs or result.entries:
            counts = {"logs": result.logs, "entries": result.entries}
            _log.info("logs_stored", extra={"chain": self._lease.chain_id, "block": page.number, **counts})
        self._watches = result.watches
        return result.watches

    async def _find_refused(self, watches: ChainWatches, page: BlockPage, keys: Sequence[LogKey]) -> dict[LogKey, str]:
        """Return the logs that the database refuses, with the reasons, by writing halves of them and rolling back."""
        try:
            await self._write_once(watches, msgspec.structs.replace(page, trial=frozenset(keys)))
        except RefusedDataError as error:
            if len(keys) == 1:
                return {keys[0]: str(error)}
            first, second = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            return await self._find_refused(watches, page, first) | await self._find_refused(watches, page, second)
        return {}

    async def _write_once(self, watches: ChainWatches, page: BlockPage) -> PageResult:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            return await self._writer.write(tx, self._lease, now + LEASE_DURATION, watches, page, now)

    async def _is_read(self, head: Block, last: tuple[int, str]) -> bool:
        """Return whether the head, at or below the last block that was read, belongs to the chain that was read."""
        if head.number == last[0]:
            await self.set_problem(self._stale_head(head))
            return head.hash == last[1]
        await self.set_problem(f"the node is at block {head.number}; blocks up to {last[0]} were read")
        blocks = [block for block in await self._stored_blocks() if block[0] <= head.number]
        if not blocks:
            return True
        number, hash_ = blocks[-1]
        block = head if number == head.number else await self._node.block(number)
        return block is None or block.hash == hash_

    async def _stored_blocks(self) -> list[tuple[int, str]]:
        async with self._database.transaction() as tx:
            blocks, _ = await run(tx, store.list_blocks(self._lease.chain_id), COMMIT)
        return blocks

    async def _reorganize(self, head: Block) -> None:
        """Move the cursor back to the last common block, and drop the logs above it."""
        if await self._node.chain_id() != self._lease.chain_id:
            raise WrongChainError
        block = await self._find_common_block(head)
        await move_cursor_back(self._database, self._clock, self._lease, block)
        self._last, self._dropping_above = block, block[0]
        await self._drop(block[0])

    async def _drop(self, above: int) -> None:
        result = await drop_above(self._database, self._clock, self._lease, above)
        self._dropping_above = None
        extra = {"chain": self._lease.chain_id, "block": above, "logs": result.logs, "entries": result.entries}
        _log.warning("chain_reorganized", extra=extra)

    async def _find_common_block(self, head: Block) -> tuple[int, str]:
        """Return the newest stored block that is still in the chain, or the block before the oldest one."""
        blocks = [block for block in await self._stored_blocks() if block[0] <= head.number]
        common, forked = 0, len(blocks)  # blocks[:common] are in the chain, blocks[forked:] are not
        while common < forked:
            middle = (common + forked) // 2
            block = await self._node.block(blocks[middle][0])
            if block is None:
                raise NodeError(f"does not have block {blocks[middle][0]}", "unavailable")
            if block.hash == blocks[middle][1]:
                common = middle + 1
            else:
                forked = middle
        # Block 0 is stored to tell chains apart; the blocks between it and the next stored one were never read.
        only_first = common == 1 and blocks[0][0] == 0 and len(blocks) > 1
        if common and not only_first:
            return blocks[common - 1]
        oldest = blocks[1 if only_first else 0][0] if blocks else head.number + 1
        block = await self._node.block(oldest - 1) if oldest >= 1 else None
        return (oldest - 1, block.hash) if block is not None else (-1, "")


async def wait_for_watches(database: Database, chain_id: int) -> bool:
    """Wait until something is watched on a chain; return False if it was watched already."""
    watches, has_waited = NO_WATCHES, False
    while True:
        async with database.transaction() as tx:
            watches = await read_watches(tx, chain_id, watches)
            await run(tx, COMMIT)
        if watches.requested:
            return has_waited
        has_waited = True
        await asyncio.sleep(POLL_INTERVAL_S)


async def find_last_block_before(node: EvmNode, since: datetime, first: int, head: Block) -> Block | None:
    """Return the last block from `first` on with a timestamp before `since`, or None; raise NodeError."""
    seconds, low, high, last = int(since.timestamp()), first, head.number, None
    while low <= high:
        middle = (low + high) // 2
        block = head if middle == head.number else await node.block(middle)
        if block is None:
            raise NodeError(f"does not have block {middle}", "unavailable")
        if block.seconds < seconds:
            low, last = middle + 1, block
        else:
            high = middle - 1
    return last
