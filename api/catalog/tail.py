"""Recent events of every outcome and from every API process: one page of them, or a tail to follow.

Ids are made when an event is read (a notice's when it is written), and rows appear when they are committed, so a
smaller id may appear after a larger one. A tail therefore reads the ids of the last OVERLAP again and skips those that
it has returned; older ids are settled. A cursor has the id up to which everything is settled, the number of ids
returned after it, and the newest of these. On resume these ids are counted again. If the number is the same, no event
appeared late. If it is larger, the events of these few seconds are returned again: no event is missed, and repetitions
are rare.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import get_args

import msgspec

from api.clock import Clock, from_us, us_of, uuid7_from
from api.store import events as store
from api.store.database import Database, DatabaseUnavailableError, Transaction, TransactionConflictError
from api.store.events import RecentSelection
from workbench.language.problem import Problem
from workbench.language.responses import EventOutcome, RecentEvent

OUTCOMES: tuple[EventOutcome, ...] = get_args(EventOutcome)
MAX_EVENTS = 500  # per page, and per poll of a follower
OVERLAP = timedelta(seconds=5)  # a batch is committed or given up within two seconds of its arrival
RETENTION = timedelta(days=7)
POLL_INTERVAL_S = 0.25

_MAX_OVERLAP_IDS = 5_000  # with more events in the overlap, a new tail begins at the newest 5,000
_MAX_CLOCK_SKEW = timedelta(seconds=1)
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
_CURSOR = re.compile(rf"({_ID})(?:\.(\d{{1,5}})\.({_ID}))?", re.ASCII)


class Cursor(msgspec.Struct, frozen=True):
    """A position: everything up to the id `settled`, and `count` ids beyond it, the newest of them `last`."""

    settled: str
    count: int = 0
    last: str = ""

    def __str__(self) -> str:
        return f"{self.settled}.{self.count}.{self.last}" if self.count else self.settled


def read_cursor(text: str) -> Cursor | None:
    """Parse a cursor or the id of an event; return None if the text is neither."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        return None
    return Cursor(match[1], int(match[2]), match[3]) if match[2] else Cursor(match[1])


TailItem = tuple[RecentEvent, Cursor]
"""An event, and the cursor that resumes after it."""


class Tail:
    """The recent events of one organization with some outcomes. Call `begin` or `resume` before `more`."""

    def __init__(self, database: Database, clock: Clock, org_id: int, outcomes: Sequence[str] = OUTCOMES) -> None:
        self._database = database
        self._clock = clock
        self._org_id = org_id
        self._outcomes = tuple(outcomes)
        self._settled = self._last = ""
        self._returned: set[str] = set()

    @property
    def cursor(self) -> Cursor:
        """The position after the last event that was returned."""
        return Cursor(self._settled, len(self._returned), self._last) if self._returned else Cursor(self._settled)

    async def begin(self, limit: int) -> list[TailItem]:
        """Start at the present; return up to `limit` earlier events, the newest last."""
        now_us = self._clock.now_us()
        self._settled, oldest = _first_id(now_us - _us(OVERLAP)), _first_id(now_us - _us(RETENTION))
        async with self._database.transaction() as tx:
            overlap = await store.list_newest_ids(tx, self._after(self._settled), self._settled, _MAX_OVERLAP_IDS)
            ids = await store.list_newest_ids(tx, self._after(oldest), oldest, limit) if limit else []
            events = await self._read(tx, self._after(oldest), ids)
        self._mark(overlap)
        if len(overlap) == _MAX_OVERLAP_IDS:
            self._settle(overlap[-1])
        return self._items(events)

    async def resume(self, cursor: Cursor) -> None:
        """Continue from the position of another tail, at most seven days ago."""
        now_us = self._clock.now_us()
        self._settled = min(max(cursor.settled, _first_id(now_us - _us(RETENTION))), _first_id(now_us))
        async with self._database.transaction() as tx:
            ids = await store.list_ids_after(tx, self._after(self._settled), self._settled, (), cursor.count + 1)
        returned = [event_id for event_id in ids if event_id <= cursor.last]
        # If the number differs, an event was committed late and the client lacks it: return all of them again.
        if len(returned) == cursor.count:
            self._mark(returned)

    async def more(self, limit: int = MAX_EVENTS) -> list[TailItem]:
        """Return up to `limit` events that were not returned yet, the newest last."""
        settled = _first_id(self._clock.now_us() - _us(OVERLAP))
        selection = self._after(self._settled)
        async with self._database.transaction() as tx:
            ids = await store.list_ids_after(tx, selection, self._settled, self._returned, limit)
            events = await self._read(tx, selection, ids)
        items = self._items(events)
        self._settle(settled if len(ids) < limit else min(settled, ids[-1]))
        return items

    def _after(self, event_id: str) -> RecentSelection:
        return RecentSelection(self._org_id, self._outcomes, from_us(us_of(event_id)) - _MAX_CLOCK_SKEW)

    async def _read(self, tx: Transaction, selection: RecentSelection, ids: list[str]) -> list[RecentEvent]:
        if not ids:
            return []
        rows = await store.read_recent(tx, selection, ids)
        accepted_at = {row.at for row in rows if row.outcome == "accepted"}
        entries = await store.count_entries(tx, self._org_id, accepted_at) if accepted_at else {}
        return [
            msgspec.structs.replace(
                row,
                payload=row.payload and msgspec.Raw(row.payload),
                body=row.body and msgspec.Raw(row.body),
                error=None if row.error is None else str(Problem(row.field or "", row.error)),
                entries=entries.get(row.id, 0) if row.outcome == "accepted" else None,
            )
            for row in rows
        ]

    def _items(self, events: list[RecentEvent]) -> list[TailItem]:
        items: list[TailItem] = []
        for event in events:
            self._mark([event.id])
            items.append((event, self.cursor))
        return items

    def _mark(self, ids: list[str]) -> None:
        unsettled = [event_id for event_id in ids if event_id > self._settled]
        self._returned.update(unsettled)
        self._last = max([self._last, *unsettled])

    def _settle(self, settled: str) -> None:
        if settled > self._settled:
            self._settled = settled
            self._returned = {event_id for event_id in self._returned if event_id > settled}


class TooManyFollowersError(Exception):
    """The organization, or this process, has as many followers as it may have."""


class Followers:
    """The followers of tails in this process. Their number is limited: each takes a millisecond four times a second.

    Set `ended` to make all of them stop.
    """

    def __init__(self, max_per_org: int = 10, max_total: int = 50) -> None:
        self.ended = False
        self._max_per_org = max_per_org
        self._max_total = max_total
        self._organizations: Counter[int] = Counter()

    @contextmanager
    def join(self, org_id: int) -> Iterator[None]:
        """Count as a follower inside the block; raise TooManyFollowersError."""
        if self._organizations[org_id] >= self._max_per_org or self._organizations.total() >= self._max_total:
            raise TooManyFollowersError
        self._organizations[org_id] += 1
        try:
            yield
        finally:
            self._organizations[org_id] -= 1

    async def follow(self, tail: Tail) -> AsyncGenerator[list[TailItem], None]:
        """Yield new events, or an empty list, four times a second until `ended` is set."""
        while not self.ended:
            try:
                items = await tail.more()
            except (DatabaseUnavailableError, TransactionConflictError):
                items = []  # the next poll finds them
            yield items
            await asyncio.sleep(POLL_INTERVAL_S)


def _first_id(at_us: int) -> str:
    return uuid7_from(at_us, bytes(8))


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
