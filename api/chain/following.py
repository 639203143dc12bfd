"""The time of one lease: where the cursor is, what is followed, and how it goes on from there."""

import asyncio
import contextlib
import logging
from collections.abc import Set
from datetime import UTC, datetime

import msgspec

from api.chain import beginning
from api.chain.answers import Block, NodeError
from api.chain.dropping import move_back, take_back
from api.chain.isolating import refused_among
from api.chain.reading import NEAR, ForkError, Reader
from api.chain.sightings import Place, sighted
from api.chain.storing import ChangedError, Keeper, Page, Told
from api.chain.watching import NOTHING, Watched, read_watched
from api.clock import Clock
from api.store import chain as store
from api.store.calls import COMMIT, run
from api.store.chain import LEASE, Taken
from api.store.database import ConflictError, Database, RefusedDataError, UnavailableError

SHORTEST, LONGEST = 0.2, 2.0  # seconds between two looks at the head: a quarter of the time of a block, in these bounds
LATE, LATE_BLOCKS = 60.0, 20  # seconds, and times of a block, after which the newest block is not new

_log = logging.getLogger("workbench.chain")


class WrongChainError(Exception):
    """The node is one of another chain than before."""


class Following:
    """Reads one chain on, from where it was read before."""

    def __init__(
        self, database: Database, clock: Clock, reader: Reader, keeper: Keeper, taken: Taken, looked_since: datetime
    ) -> None:
        """`looked_since`: since when somebody looks for what there is to follow."""
        self._database = database
        self._clock = clock
        self._node = reader.node
        self._keeper = keeper
        self._reader = reader
        self._lease = taken.lease
        self._begun = taken.block_number is not None
        self._last: tuple[int, str] | None = None
        self._dropping = taken.dropping_above
        self._watched = NOTHING
        self._head: Block | None = None
        self._trouble: str | None = ""  # not known: the last follower may have noted some
        self._per_block = 0.0  # seconds
        self._looked_since = looked_since
        self._passed_for = 0

    async def go_on(self) -> None:
        """Read on; rest a little when there is nothing more to read for the moment."""
        if self._dropping is not None:
            await self._take_back(self._dropping)
        if not (await self._followed()).asked_for:
            await self.note(None)
            await asyncio.sleep(beginning.LOOK_EVERY)
            return
        head = await self._latest()
        try:
            last = await self._passed_over(await self._cursor(head), head)
            if head.number > last[0]:
                await self._read(last, head)
                await self.note(self._late(head))
            elif not await self._is_read(head, last):
                await self._go_back(head)
            else:
                await asyncio.sleep(min(max(self._per_block / 4, SHORTEST), LONGEST))
        except ForkError:
            await self._go_back(head)
        except ChangedError:
            return

    async def note(self, trouble: str | None) -> None:
        """Say what hinders us, where everybody can see it; None: nothing any more."""
        if trouble == self._trouble:
            return
        with contextlib.suppress(UnavailableError, ConflictError):
            async with self._database.transaction() as tx:
                await run(tx, store.note_chain(self._lease, trouble), COMMIT)
            self._trouble = trouble

    async def _read(self, last: tuple[int, str], head: Block) -> None:
        watched = self._watched
        async for page in self._reader.pages(watched, last, head):
            watched = await self._keep(watched, page)

    async def _latest(self) -> Block:
        head = await self._node.head()
        if self._head is not None and head.number > self._head.number:
            self._per_block = (head.seconds - self._head.seconds) / (head.number - self._head.number)
        self._head = head
        return head

    def _late(self, head: Block) -> str | None:
        """Return what is to be said of a newest block that is not new: its node stands still or is slow, or the chain is."""
        age = self._clock.now().timestamp() - head.seconds
        if age <= max(LATE, LATE_BLOCKS * self._per_block):
            return None
        return f"no new block since {datetime.fromtimestamp(head.seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"

    async def _followed(self) -> Watched:
        """Return what is followed now; only what changed is read again."""
        async with self._database.transaction() as tx:
            self._watched = await read_watched(tx, self._lease.chain_id, self._watched)
            await run(tx, COMMIT)
        return self._watched

    async def _cursor(self, head: Block) -> tuple[int, str]:
        """Return the last block that was read.

        The first time that is the head, as what was before is history; or where what is followed began, if somebody was looking then.
        """
        if self._last is None and self._begun:
            blocks = await self._remembered()
            self._last = blocks[-1] if blocks else (-1, "")
        if self._last is None:
            first, start, since = await self._node.block(0), head, self._watched.since
            if first is not None and since is not None and since > self._looked_since:
                start = await beginning.last_before(self._node, since, 0, head) or first
            blocks = [(0, first.hash)] if first is not None and start.number else []
            page = Page(start.number, start.number, head.number, [], [*blocks, (start.number, start.hash)])
            await self._keep(self._watched, page)
            self._begun = True
        assert self._last is not None
        return self._last

    async def _passed_over(self, last: tuple[int, str], head: Block) -> tuple[int, str]:
        """Pass over the blocks of before anything that is followed now began, once for what that is; return the last one."""
        watched, since = self._watched, self._watched.since
        if since is None or head.number - last[0] <= NEAR or watched.epoch == self._passed_for:
            return last
        block = await beginning.last_before(self._node, since, last[0] + 1, head)
        first = await self._node.block(last[0] + 1)
        if first is not None and last[1] and first.parent_hash != last[1]:
            raise ForkError
        if block is not None:
            await self._keep(watched, Page(last[0], block.number, head.number, [], [(block.number, block.hash)]))
        self._passed_for = watched.epoch
        assert self._last is not None
        return self._last

    async def _keep(self, watched: Watched, page: Page) -> Watched:
        """Store a page that was read for what was followed then; return what is followed now."""
        try:
            told = await self._store(watched, page)
        except RefusedDataError:
            page = await self._without_refused(watched, page)
            told = await self._store(watched, page)
        self._last = page.blocks[-1]
        if told.logs or told.entries:
            extra = {"chain": self._lease.chain_id, "block": page.number, "logs": told.logs, "entries": told.entries}
            _log.info("logs_kept", extra=extra)
        self._watched = told.watched
        return told.watched

    async def _store(self, watched: Watched, page: Page) -> Told:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            return await self._keeper.keep(tx, self._lease, now + LEASE, watched, page, now)

    async def _without_refused(self, watched: Watched, page: Page) -> Page:
        """Return a page without the logs that the database refuses, and say which these are."""

        async def tried(places: Set[Place]) -> None:
            await self._store(watched, msgspec.structs.replace(page, trial=places))

        places = [each.place for each in sighted(watched, page.logs)]
        dead = await refused_among(places, tried)
        for (org_id, tx_hash, log_index), reason in dead.items():
            where = {"chain": self._lease.chain_id, "tx": tx_hash, "log_index": log_index}
            _log.error("log_dead", extra={**where, "org": org_id, "reason": reason})
        return msgspec.structs.replace(page, dead=dead)

    async def _is_read(self, head: Block, last: tuple[int, str]) -> bool:
        """Return whether the chain as the node has it, no longer than what was read, is a part of that."""
        if head.number == last[0]:
            await self.note(self._late(head))
            return head.hash == last[1]
        await self.note(f"the node is at block {head.number}; read up to {last[0]}")
        known = [each for each in await self._remembered() if each[0] <= head.number]
        if not known:
            return True
        number, hash_ = known[-1]
        found = head if number == head.number else await self._node.block(number)
        return found is None or found.hash == hash_

    async def _remembered(self) -> list[tuple[int, str]]:
        async with self._database.transaction() as tx:
            blocks, _ = await run(tx, store.list_blocks(self._lease.chain_id), COMMIT)
        return blocks

    async def _go_back(self, head: Block) -> None:
        """Take back what is no longer in the chain."""
        if await self._node.chain_id() != self._lease.chain_id:
            raise WrongChainError
        block = await self._common(head)
        await move_back(self._database, self._clock, self._lease, block)
        self._last, self._dropping = block, block[0]
        await self._take_back(block[0])

    async def _take_back(self, above: int) -> None:
        """Take back what happened above a block."""
        told = await take_back(self._database, self._clock, self._lease, above)
        self._dropping = None
        extra = {"chain": self._lease.chain_id, "block": above, "logs": told.logs, "entries": told.entries}
        _log.warning("chain_reorganized", extra=extra)

    async def _common(self, head: Block) -> tuple[int, str]:
        """Return the newest remembered block that is still in the chain; if none is, the one before all of them.

        The first block of the chain only tells one chain from another: what lies between it and the others was never read here.
        """
        blocks = [each for each in await self._remembered() if each[0] <= head.number]
        same, other = 0, len(blocks)  # all before `same` are in the chain, none from `other` on is
        while same < other:
            middle = (same + other) // 2
            found = await self._node.block(blocks[middle][0])
            if found is None:
                raise NodeError(f"does not have block {blocks[middle][0]}", "away")
            if found.hash == blocks[middle][1]:
                same = middle + 1
            else:
                other = middle
        only_first = same == 1 and blocks[0][0] == 0 and len(blocks) > 1
        if same and not only_first:
            return blocks[same - 1]
        oldest = blocks[1 if only_first else 0][0] if blocks else head.number + 1
        below = oldest - 1
        found = await self._node.block(below) if below >= 0 else None
        return (below, found.hash) if found is not None else (-1, "")
