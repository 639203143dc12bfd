"""Reading blocks of a chain into pages, in ways that no node can make us miss a log.

Near the head every block is asked for by its hash: a node that lags behind its neighbours refuses, where for a range of numbers it would
answer that there is nothing. Near is what may still be reorganized, and what a node may be behind by: so many blocks, or so many seconds.
Below that blocks are read in ranges, together with their last block, as wide as the node lets us: what is too much for it is halved, and
tried wider again later; what is too much of one block is asked for in parts. A page never ends inside a block.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from api.chain.answers import Block, Log, NodeError
from api.chain.rpc import Node
from api.chain.storing import Page
from api.chain.wanted import Wanted
from api.chain.watching import Watched

NEAR = 64  # blocks below the head: a reorganization of more is a catastrophe on every chain
NEAR_SECONDS = 300  # the same, where blocks are fast
MOST_NEAR = 2_000  # blocks
AT_ONCE = 16  # near blocks that are read before they are stored
PAGE = 1_000  # logs that are stored together, and those of the last block beside them
MOST_CONTRACTS = 200  # of one question
WIDEST = 10_000  # blocks of a range
FIRST = 1_000
CALM = 8  # ranges that went well before a wider one is tried
CROWDED = 5_000  # logs of a range

_T = TypeVar("_T")


class ForkError(Exception):
    """The chain is another one than that which was read."""


class Reader:
    """Reads one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._width = FIRST
        self._calm = 0
        self._at_once = AT_ONCE
        self._dates: dict[int, Block] = {}

    async def pages(self, watched: Watched, last: tuple[int, str], head: Block) -> AsyncIterator[Page]:
        """Yield pages from the block after `last` (number, hash) towards the head; raise ForkError, NodeError."""
        number, hash_ = last
        far = number
        if number < head.number - NEAR:
            first = await self._block(number + 1)
            _follows(first, hash_)
            far = head.number - _near(first, head)
        if number < far:
            async for page in self._range(watched, number, far, head.number):
                yield page
        else:
            for page in await self._last(watched, last, head):
                yield page

    async def _last(self, watched: Watched, last: tuple[int, str], head: Block) -> list[Page]:
        """Return the pages of the next blocks near the head; fewer at a time while the node stumbles."""
        number, hash_ = last
        at_once, self._at_once = self._at_once, max(self._at_once // 2, 1)
        blocks = await self._blocks(number + 1, min(head.number, number + at_once), head)
        for block in blocks:
            _follows(block, hash_)
            hash_ = block.hash
        questions = _questions(watched)
        logs = await _all(self._logs_of(block, questions) for block in blocks)
        self._at_once = min(at_once + 1, AT_ONCE)
        return _paged(number, head.number, blocks, logs)

    async def _range(self, watched: Watched, after: int, far: int, head: int) -> AsyncIterator[Page]:
        """Yield the pages of the next range of blocks up to `far`."""
        questions = _questions(watched)
        if not questions:
            end = await self._block(far)
            yield Page(after, far, head, [], [(far, end.hash)])
            return
        end, logs = await self._wide(questions, after + 1, far)
        rest: list[Log] = []
        for part in _parts(logs):
            try:
                rest = await self._dated(part)
            except NodeError:
                self._narrow(end.number - after)
                raise
            block = part[-1]
            if block.block_number < end.number:
                yield Page(after, block.block_number, head, rest, [(block.block_number, block.block_hash)])
                after, rest = block.block_number, []
        yield Page(after, end.number, head, rest, [(end.number, end.hash)])
        self._dates = {number: block for number, block in self._dates.items() if number > end.number}

    async def _wide(self, questions: Sequence[Wanted], first: int, far: int) -> tuple[Block, list[Log]]:
        """Return the last block of one range of logs, and the logs."""
        while (last := min(first + self._width - 1, far)) > first:
            try:
                end, logs = await self._logs_between(questions, first, last)
            except NodeError as error:
                if error.kind != "limited":
                    self._narrow(last - first + 1)
                if error.kind in ("limited", "away"):
                    raise
                continue
            self._adapt(len(logs))
            return end, logs
        end = await self._block(first)
        logs = await self._logs_of(end, questions)
        self._adapt(len(logs))
        return end, logs

    def _narrow(self, width: int) -> None:
        self._width, self._calm = max(width // 2, 1), 0

    def _adapt(self, logs: int) -> None:
        self._calm += 1
        if logs > CROWDED:
            self._narrow(self._width)
        elif self._calm >= CALM:
            self._width, self._calm = min(self._width * 2, WIDEST), 0

    async def _logs_between(self, questions: Sequence[Wanted], first: int, last: int) -> tuple[Block, list[Log]]:
        found: list[Log] = []
        hashes: dict[int, str] = {}
        end: Block | None = None
        for wanted in questions:
            logs, end = await self.node.logs_between(first, last, wanted)
            hashes[last] = hashes.get(last, end.hash)
            if end.hash != hashes[last] or any(not first <= log.block_number <= last for log in logs):
                raise NodeError("answers with logs of other blocks", "away")
            found += logs
        for log in found:
            if hashes.setdefault(log.block_number, log.block_hash) != log.block_hash:
                raise NodeError("answers with logs of two chains", "away")
        assert end is not None
        return end, sorted(found, key=lambda log: (log.block_number, log.log_index))

    async def _logs_of(self, block: Block, questions: Sequence[Wanted]) -> list[Log]:
        found: list[Log] = []
        for wanted in questions:
            found += await self._all_of(block, wanted)
        if any((log.block_hash, log.block_number) != (block.hash, block.number) for log in found):
            raise NodeError("answers with logs of other blocks", "away")
        dated = [msgspec.structs.replace(log, seconds=block.seconds) for log in found]
        return sorted(dated, key=lambda log: log.log_index)

    async def _all_of(self, block: Block, wanted: Wanted) -> list[Log]:
        """Return the logs of one block, in as many parts as it takes."""
        try:
            return await self.node.logs_of(block.hash, wanted)
        except NodeError as error:
            if error.kind != "large":
                raise
        halves = wanted.halves()
        if halves is None:
            return await self.node.logs_of(block.hash, wanted, whole=True)
        return [log for half in halves for log in await self._all_of(block, half)]

    async def _dated(self, logs: list[Log]) -> list[Log]:
        """Return logs with the moments of their blocks, which not every node says with them. What a limited node said stays known."""
        hashes = {log.block_number: log.block_hash for log in logs if log.seconds is None}
        numbers = sorted(number for number, hash_ in hashes.items() if self._date(number, hash_) is None)
        for start in range(0, len(numbers), AT_ONCE):
            await _all(self._learn(number, hashes[number]) for number in numbers[start : start + AT_ONCE])
        return [
            log
            if log.seconds is not None
            else msgspec.structs.replace(log, seconds=self._dates[log.block_number].seconds)
            for log in logs
        ]

    def _date(self, number: int, hash_: str) -> Block | None:
        block = self._dates.get(number)
        return block if block is not None and block.hash == hash_ else None

    async def _learn(self, number: int, hash_: str) -> None:
        block = self._dates[number] = await self._block(number)
        if block.hash != hash_:
            raise NodeError(f"answers with logs of another block {number} than it has", "away")

    async def _blocks(self, first: int, last: int, head: Block) -> list[Block]:
        numbers = range(first, last + 1)
        found = await _all(self._block(number) for number in numbers if number != head.number)
        return [*found, head] if last == head.number else found

    async def _block(self, number: int) -> Block:
        found = await self.node.block(number)
        if found is None:
            raise NodeError(f"does not have block {number} yet", "away")
        if found.number != number:
            raise NodeError(f"answers with another block than {number}", "away")
        return found


async def _all(questions: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return what all of them give; when one fails, nobody goes on asking."""
    tasks = [asyncio.create_task(each) for each in questions]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _near(first: Block, head: Block) -> int:
    """Return how many blocks below the head are near it, by how fast they came since a block."""
    seconds = max(head.seconds - first.seconds, 1) / (head.number - first.number)
    return min(max(int(NEAR_SECONDS / seconds), NEAR), MOST_NEAR)


def _questions(watched: Watched) -> list[Wanted]:
    """Return what is asked for everything that is followed."""
    contracts, topics = watched.contracts, frozenset(watched.topics)
    topics_of: dict[str, set[str]] = {contract: set() for contract in contracts}
    for contract, topic in watched.by_topic:
        if contract in topics_of and topic in topics:
            topics_of[contract].add(topic)
    everything = Wanted({contract: frozenset(found) for contract, found in topics_of.items()})
    return [
        everything.part(contracts[start : start + MOST_CONTRACTS]) for start in range(0, len(contracts), MOST_CONTRACTS)
    ]


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
