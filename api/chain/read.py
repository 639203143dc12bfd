"""Read the blocks of a chain into pages, so that no behaviour of a node loses a log.

Near the head, the logs of every block are requested by the block's hash: a node that lags behind refuses a hash that it
does not have, while for a range of block numbers it would return no logs. "Near" covers the blocks that may be
reorganized and those that a node may lag behind: a number of blocks, or of seconds if that is more.

Further below, logs are requested for ranges of blocks, together with the range's last block. The range is as wide as
the node allows: it is halved after a refusal and doubled after some successes. If a single block has too many logs,
they are requested in parts. A page never ends inside a block.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from api.chain.rpc import Block, EvmNode, Log, LogFilter, NodeError
from api.chain.watch import ChainWatches
from api.chain.write import BlockPage

NEAR_BLOCKS = 64  # below the head: no chain in normal operation reorganizes deeper
NEAR_S = 300  # for chains with fast blocks: of the nodes behind one address, some may be minutes behind
MAX_NEAR_BLOCKS = 2_000  # each takes two requests
MAX_CONCURRENT_BLOCKS = 16  # near blocks that are read before they are stored
PAGE_LOGS = 1_000  # a page is complete with this many logs and the rest of its last block
MAX_CONTRACTS = 200  # per request
FIRST_RANGE_BLOCKS = 1_000
MAX_RANGE_BLOCKS = 10_000
SUCCESSES_BEFORE_WIDER = 8
CROWDED_RANGE_LOGS = 5_000  # a range with more logs is halved before the node refuses it

_T = TypeVar("_T")


class ForkError(Exception):
    """The node's chain does not continue the blocks that were read."""


class NodeReader:
    def __init__(self, node: EvmNode) -> None:
        self.node = node
        self._range_blocks = FIRST_RANGE_BLOCKS
        self._successes = 0
        self._concurrent_blocks = MAX_CONCURRENT_BLOCKS
        self._dated_blocks: dict[int, Block] = {}

    async def pages(self, watches: ChainWatches, last: tuple[int, str], head: Block) -> AsyncIterator[BlockPage]:
        """Yield pages from the block after `last` (number, hash) towards the head; raise ForkError, NodeError."""
        number, hash_ = last
        range_end = number
        if number < head.number - NEAR_BLOCKS:
            first = await self._block(number + 1)
            if not _continues(first, hash_):
                raise ForkError
            # NEAR_S in blocks, at the average block time since that block.
            seconds_per_block = max(head.seconds - first.seconds, 1) / (head.number - first.number)
            near_blocks = min(max(int(NEAR_S / seconds_per_block), NEAR_BLOCKS), MAX_NEAR_BLOCKS)
            range_end = head.number - near_blocks
        if number < range_end:
            async for page in self._range_pages(watches, number, range_end, head.number):
                yield page
        else:
            for page in await self._near_pages(watches, last, head):
                yield page

    async def _near_pages(self, watches: ChainWatches, last: tuple[int, str], head: Block) -> list[BlockPage]:
        """Return the pages of the next blocks near the head."""
        after, hash_ = last
        # The number is halved until this page succeeds, so a node that limits requests gets fewer after an error.
        concurrent, self._concurrent_blocks = self._concurrent_blocks, max(self._concurrent_blocks // 2, 1)
        end = min(head.number, after + concurrent)
        blocks = await _all(self._block(number) for number in range(after + 1, end + 1) if number != head.number)
        if end == head.number:
            blocks.append(head)
        for block in blocks:
            if not _continues(block, hash_):
                raise ForkError
            hash_ = block.hash
        filters = _filters(watches)
        logs_by_block = await _all(self._logs_of(block, filters) for block in blocks)
        self._concurrent_blocks = min(concurrent + 1, MAX_CONCURRENT_BLOCKS)

        pages: list[BlockPage] = []
        page_logs: list[Log] = []
        page_blocks: list[tuple[int, str]] = []
        for block, logs in zip(blocks, logs_by_block, strict=True):
            page_logs += logs
            page_blocks.append((block.number, block.hash))
            if len(page_logs) >= PAGE_LOGS or block is blocks[-1]:
                pages.append(BlockPage(after, block.number, head.number, page_logs, page_blocks))
                after, page_logs, page_blocks = block.number, [], []
        return pages

    async def _range_pages(
        self, watches: ChainWatches, after: int, range_end: int, head: int
    ) -> AsyncIterator[BlockPage]:
        """Yield the pages of the next range of blocks, up to `range_end` at most."""
        filters = _filters(watches)
        if not filters:
            end = await self._block(range_end)
            yield BlockPage(after, range_end, head, [], [(range_end, end.hash)])
            return
        end, logs = await self._range_logs(filters, after + 1, range_end)
        parts: list[list[Log]] = []  # of whole blocks
        for log in logs:
            if not parts or (len(parts[-1]) >= PAGE_LOGS and parts[-1][-1].block_number != log.block_number):
                parts.append([])
            parts[-1].append(log)
        remaining: list[Log] = []
        for part in parts:
            try:
                remaining = await self._with_dates(part)
            except NodeError:
                self._halve_range(end.number - after)
                raise
            block = part[-1]
            if block.block_number < end.number:
                yield BlockPage(after, block.block_number, head, remaining, [(block.block_number, block.block_hash)])
                after, remaining = block.block_number, []
        yield BlockPage(after, end.number, head, remaining, [(end.number, end.hash)])
        self._dated_blocks = {number: block for number, block in self._dated_blocks.items() if number > end.number}

    async def _range_logs(self, filters: Sequence[LogFilter], first: int, range_end: int) -> tuple[Block, list[Log]]:
        """Return the last block of the widest range that the node accepts, and the range's logs."""
        while (last := min(first + self._range_blocks - 1, range_end)) > first:
            try:
                end, logs = await self._logs_between(filters, first, last)
            except NodeError as error:
                if error.kind != "rate_limited":  # a smaller range would not help against a rate limit
                    self._halve_range(last - first + 1)
                if error.kind in ("rate_limited", "unavailable"):
                    raise
                continue
            self._adapt_range(len(logs))
            return end, logs
        end = await self._block(first)
        logs = await self._logs_of(end, filters)
        self._adapt_range(len(logs))
        return end, logs

    def _halve_range(self, blocks: int) -> None:
        self._range_blocks, self._successes = max(blocks // 2, 1), 0

    def _adapt_range(self, logs: int) -> None:
        self._successes += 1
        if logs > CROWDED_RANGE_LOGS:
            self._halve_range(self._range_blocks)
        elif self._successes >= SUCCESSES_BEFORE_WIDER:
            self._range_blocks, self._successes = min(self._range_blocks * 2, MAX_RANGE_BLOCKS), 0

    async def _logs_between(self, filters: Sequence[LogFilter], first: int, last: int) -> tuple[Block, list[Log]]:
        all_logs: list[Log] = []
        hashes: dict[int, str] = {}  # by block number; another node may answer the next request
        end: Block | None = None
        for log_filter in filters:
            logs, end = await self.node.logs_between(first, last, log_filter)
            hashes[last] = hashes.get(last, end.hash)
            if end.hash != hashes[last] or any(not first <= log.block_number <= last for log in logs):
                raise NodeError("returned logs of other blocks", "unavailable")
            all_logs += logs
        for log in all_logs:
            if hashes.setdefault(log.block_number, log.block_hash) != log.block_hash:
                raise NodeError("returned logs of two chains", "unavailable")
        assert end is not None
        return end, sorted(all_logs, key=lambda log: (log.block_number, log.log_index))

    async def _logs_of(self, block: Block, filters: Sequence[LogFilter]) -> list[Log]:
        logs = [log for log_filter in filters for log in await self._divided_logs_of(block, log_filter)]
        if any((log.block_hash, log.block_number) != (block.hash, block.number) for log in logs):
            raise NodeError("returned logs of other blocks", "unavailable")
        dated = [msgspec.structs.replace(log, seconds=block.seconds) for log in logs]
        return sorted(dated, key=lambda log: log.log_index)

    async def _divided_logs_of(self, block: Block, log_filter: LogFilter) -> list[Log]:
        """Return the logs of one block, requested in as many parts as it takes."""
        try:
            return await self.node.logs_of(block.hash, log_filter)
        except NodeError as error:
            if error.kind != "too_large":
                raise
        halves = log_filter.halves()
        if halves is None:  # one topic of one contract: too large however it is requested
            return await self.node.logs_of(block.hash, log_filter, undivided=True)
        return [log for half in halves for log in await self._divided_logs_of(block, half)]

    async def _with_dates(self, logs: list[Log]) -> list[Log]:
        """Return logs with the timestamps of their blocks, which some nodes do not include."""
        # Blocks that were fetched before a rate limit are kept for the next attempt, which otherwise would fail again.
        hashes = {log.block_number: log.block_hash for log in logs if log.seconds is None}
        missing = sorted(
            number
            for number, hash_ in hashes.items()
            if (block := self._dated_blocks.get(number)) is None or block.hash != hash_
        )

        async def fetch(number: int) -> None:
            block = self._dated_blocks[number] = await self._block(number)
            if block.hash != hashes[number]:
                raise NodeError(f"returned logs of block {number} with another hash than its header", "unavailable")

        for start in range(0, len(missing), MAX_CONCURRENT_BLOCKS):
            await _all(fetch(number) for number in missing[start : start + MAX_CONCURRENT_BLOCKS])
        return [
            msgspec.structs.replace(log, seconds=self._dated_blocks[log.block_number].seconds)
            if log.seconds is None
            else log
            for log in logs
        ]

    async def _block(self, number: int) -> Block:
        block = await self.node.block(number)
        if block is None:
            raise NodeError(f"does not have block {number} yet", "unavailable")
        if block.number != number:
            raise NodeError(f"returned block {block.number} for block {number}", "unavailable")
        return block


async def _all(requests: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return all results; when one request fails, the others are cancelled."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _filters(watches: ChainWatches) -> list[LogFilter]:
    """Return filters that together match every requested event, of at most MAX_CONTRACTS contracts each."""
    contracts, topics = watches.contracts, frozenset(watches.topics)
    topics_of: dict[str, set[str]] = {contract: set() for contract in contracts}
    for contract, topic in watches.by_topic:
        if contract in topics_of and topic in topics:
            topics_of[contract].add(topic)
    log_filter = LogFilter({contract: frozenset(topics) for contract, topics in topics_of.items()})
    return [
        log_filter.part(contracts[start : start + MAX_CONTRACTS]) for start in range(0, len(contracts), MAX_CONTRACTS)
    ]


def _continues(block: Block, parent_hash: str) -> bool:
    return not parent_hash or block.parent_hash == parent_hash  # "" is the parent of the first block
