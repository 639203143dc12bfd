"""Reading blocks of a chain into pages, in ways that no node can make us miss a log.

Near the head every block is asked for by its hash: a node that lags behind its neighbours refuses, where for a range of numbers it would
answer that there is nothing. Far below the head blocks are read in ranges, as wide as the node lets us: what is too much for it is
halved, and tried wider again later. A page never ends inside a block.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from api.chain.rpc import Block, Log, Node, NodeError
from api.chain.storing import Page
from api.chain.watching import Watched

NEAR = 64  # blocks below the head; a reorganization of more is a catastrophe on every chain
AT_ONCE = 16  # near blocks that are read before they are stored
PAGE = 1_000  # logs that are stored together, and those of the last block beside them
MOST_CONTRACTS = 200  # of one question
WIDEST = 10_000  # blocks of a range
FIRST = 1_000
CALM = 8  # ranges that went well before a wider one is tried
CROWDED = 5_000  # logs of a range


class ForkError(Exception):
    """The chain is another one than that which was read."""


class Reader:
    """Reads one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._width = FIRST
        self._calm = 0
        self._at_once = AT_ONCE

    async def pages(self, watched: Watched, last: tuple[int, str], head: Block) -> AsyncIterator[Page]:
        """Yield pages from the block after `last` (number, hash) towards the head; raise ForkError, NodeError."""
        number, hash_ = last
        far = head.number - NEAR
        if number < far:
            first = await self._block(number + 1)
            _follows(first, hash_)
            async for page in self._range(watched, number, far, head.number):
                yield page
        else:
            for page in await self._near(watched, last, head):
                yield page

    async def _near(self, watched: Watched, last: tuple[int, str], head: Block) -> list[Page]:
        """Return the pages of the next blocks; fewer at a time while the node stumbles."""
        number, hash_ = last
        at_once, self._at_once = self._at_once, max(self._at_once // 2, 1)
        blocks = await self._blocks(number + 1, min(head.number, number + at_once), head)
        for block in blocks:
            _follows(block, hash_)
            hash_ = block.hash
        logs = await asyncio.gather(*(self._logs_of(watched, block) for block in blocks))
        self._at_once = min(at_once + 1, AT_ONCE)
        return _paged(number, head.number, blocks, logs)

    async def _range(self, watched: Watched, after: int, far: int, head: int) -> AsyncIterator[Page]:
        """Yield the pages of the next range of blocks below `far`."""
        if not watched.contracts:
            end = await self._block(far)
            yield Page(after, far, head, [], [(far, end.hash)])
            return
        last, logs = await self._wide(watched, after + 1, far)
        end = await self._block(last)
        logs = await self._dated(logs)
        for part in _parts(logs):
            block = part[-1]
            if block.block_number < last:
                yield Page(after, block.block_number, head, part, [(block.block_number, block.block_hash)])
                after, logs = block.block_number, logs[len(part) :]
        yield Page(after, last, head, logs, [(last, end.hash)])

    async def _wide(self, watched: Watched, first: int, far: int) -> tuple[int, list[Log]]:
        """Return up to which block one range of logs goes, and its logs."""
        while True:
            last = min(first + self._width - 1, far)
            try:
                logs = await self._logs_between(watched, first, last)
            except NodeError as error:
                if error.kind == "limited" or last == first:
                    raise
                self._width, self._calm = max((last - first + 1) // 2, 1), 0
                continue
            self._adapt(len(logs))
            return last, logs

    def _adapt(self, logs: int) -> None:
        self._calm += 1
        if logs > CROWDED:
            self._width, self._calm = max(self._width // 2, 1), 0
        elif self._calm >= CALM:
            self._width, self._calm = min(self._width * 2, WIDEST), 0

    async def _logs_between(self, watched: Watched, first: int, last: int) -> list[Log]:
        found: list[Log] = []
        for contracts in _slices(watched.contracts):
            found += await self.node.logs_between(first, last, contracts, watched.topics)
        if any(not first <= log.block_number <= last for log in found):
            raise NodeError("answers with logs of other blocks", "away")
        return sorted(found, key=lambda log: (log.block_number, log.log_index))

    async def _logs_of(self, watched: Watched, block: Block) -> list[Log]:
        found: list[Log] = []
        for contracts in _slices(watched.contracts):
            found += await self.node.logs_of(block.hash, contracts, watched.topics)
        if any(log.block_hash != block.hash for log in found):
            raise NodeError("answers with logs of other blocks", "away")
        dated = [msgspec.structs.replace(log, seconds=block.seconds) for log in found]
        return sorted(dated, key=lambda log: log.log_index)

    async def _dated(self, logs: list[Log]) -> list[Log]:
        """Return logs with the moments of their blocks, which not every node says with them."""
        numbers = sorted({log.block_number for log in logs if log.seconds is None})
        if not numbers:
            return logs
        blocks = await asyncio.gather(*(self._block(number) for number in numbers))
        seconds = {block.number: block.seconds for block in blocks}
        return [
            log if log.seconds is not None else msgspec.structs.replace(log, seconds=seconds[log.block_number])
            for log in logs
        ]

    async def _blocks(self, first: int, last: int, head: Block) -> list[Block]:
        numbers = range(first, last + 1)
        found = await asyncio.gather(*(self._block(number) for number in numbers if number != head.number))
        return [*found, head] if last == head.number else list(found)

    async def _block(self, number: int) -> Block:
        found = await self.node.block(number)
        if found is None:
            raise NodeError(f"does not have block {number} yet", "away")
        return found


def _follows(block: Block, hash_: str) -> None:
    """Raise ForkError when a block does not stand on the one of that hash; no hash: it is the first of the chain."""
    if hash_ and block.parent_hash != hash_:
        raise ForkError


def _paged(after: int, head: int, blocks: Sequence[Block], logs: Sequence[list[Log]]) -> list[Page]:
    pages: list[Page] = []
    gathered: list[Log] = []
    passed: list[tuple[int, str]] = []
    for block, found in zip(blocks, logs, strict=True):
        gathered += found
        passed.append((block.number, block.hash))
        if len(gathered) >= PAGE:
            pages.append(Page(after, block.number, head, gathered, passed))
            after, gathered, passed = block.number, [], []
    if passed:
        pages.append(Page(after, passed[-1][0], head, gathered, passed))
    return pages


def _parts(logs: Sequence[Log]) -> list[list[Log]]:
    """Return logs in parts of whole blocks, of `PAGE` logs or a little more."""
    parts: list[list[Log]] = [[]]
    for log in logs:
        if len(parts[-1]) >= PAGE and parts[-1][-1].block_number != log.block_number:
            parts.append([])
        parts[-1].append(log)
    return [part for part in parts if part]


def _slices(contracts: Sequence[str]) -> list[Sequence[str]]:
    return [contracts[start : start + MOST_CONTRACTS] for start in range(0, len(contracts), MOST_CONTRACTS)]
