"""What came in lately, of every outcome and through every API process: a page of it, or a tail to follow.

Ids are made when an event is read (a notice's when it is written), and rows appear when they are committed: a smaller id may
appear after a larger one. So a tail asks again for the ids of the last OVERLAP seconds and leaves out those it has seen;
what is older is settled. Its cursor says up to where everything is settled, how many ids beyond that were seen, and the
newest of them. Resuming counts them again: as many as there were, and nothing came late in between; more, and those few
seconds are given once more, so that nothing is missed and repetitions are rare.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from api.clock import Clock, from_us, us_of, uuid7_from
from api.language.problem import Problem
from api.store import recent as store
from api.store.database import ConflictError, Database, Transaction, UnavailableError
from api.store.recent import RecentRow, Selection

OUTCOMES = ("accepted", "deduplicated", "dry_run", "rejected")
MOST_EVENTS = 500  # of a page, and of one look of a follower
OVERLAP = timedelta(seconds=5)
KEPT = timedelta(days=7)
POLL_SECONDS = 0.25

_MOST_SEEN = 5_000  # ids of the overlap that a tail begins with
_CLOCKS_DIFFER = timedelta(seconds=1)
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
_CURSOR = re.compile(rf"({_ID})(?:\.(\d{{1,5}})\.({_ID}))?", re.ASCII)


class Cursor(msgspec.Struct, frozen=True):
    """Up to the id `settled` all is known; beyond it `count` ids were seen, the newest of them `last`."""

    settled: str
    count: int = 0
    last: str = ""

    def __str__(self) -> str:
        return f"{self.settled}.{self.count}.{self.last}" if self.count else self.settled


def read_cursor(text: str) -> Cursor | None:
    """Return a cursor from its text, or from the id of an event; None when it is neither."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        return None
    return Cursor(found[1], int(found[2]), found[3]) if found[2] else Cursor(found[1])


class RecentEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One event and what became of it. `payload` is as it was sent; `body` has types instead of values."""

    id: str
    at: datetime
    outcome: str
    event: str | None
    contact_id: str | None = None
    idempotency_key: str | None = None
    payload: msgspec.Raw | None = None
    field: str | None = None
    error: str | None = None
    body: msgspec.Raw | None = None
    matched_automations: int | None = None
    entries: int | None = None


Given = tuple[RecentEvent, Cursor]
"""An event, and the cursor that resumes after it."""


class Tail:
    """The events of one organization with some outcomes; begin or resume it before asking for more."""

    def __init__(self, database: Database, clock: Clock, org_id: int, outcomes: tuple[str, ...] = OUTCOMES) -> None:
        self._database = database
        self._clock = clock
        self._org_id = org_id
        self._outcomes = outcomes
        self._settled = self._last = ""
        self._seen: set[str] = set()

    @property
    def cursor(self) -> Cursor:
        """Where the tail stands."""
        return Cursor(self._settled, len(self._seen), self._last) if self._seen else Cursor(self._settled)

    async def begin(self, most: int) -> list[Given]:
        """Begin now; return up to `most` events that are there already, the newest last."""
        now_us = self._clock.now_us()
        self._settled, long_ago = _first_id(now_us - _us(OVERLAP)), _first_id(now_us - _us(KEPT))
        async with self._database.transaction() as tx:
            seen = await store.newest_ids(tx, self._beyond(self._settled), self._settled, _MOST_SEEN)
            ids = await store.newest_ids(tx, self._beyond(long_ago), long_ago, most) if most else []
            events = await self._read(tx, self._beyond(long_ago), ids)
        self._see(seen)
        if len(seen) == _MOST_SEEN:
            self._settle(seen[-1])
        return self._give(events)

    async def resume(self, cursor: Cursor) -> None:
        """Stand where another tail stood, at most seven days ago."""
        now_us = self._clock.now_us()
        self._settled = min(max(cursor.settled, _first_id(now_us - _us(KEPT))), _first_id(now_us))
        async with self._database.transaction() as tx:
            first = await store.ids_after(tx, self._beyond(self._settled), self._settled, (), cursor.count + 1)
        seen = [each for each in first if each <= cursor.last]
        if len(seen) == cursor.count:
            self._see(seen)

    async def more(self, most: int = MOST_EVENTS) -> list[Given]:
        """Return up to `most` events that were not given yet, the newest last."""
        settled = _first_id(self._clock.now_us() - _us(OVERLAP))
        which = self._beyond(self._settled)
        async with self._database.transaction() as tx:
            ids = await store.ids_after(tx, which, self._settled, self._seen, most)
            events = await self._read(tx, which, ids)
        given = self._give(events)
        self._settle(settled if len(ids) < most else min(settled, ids[-1]))
        return given

    def _beyond(self, after: str) -> Selection:
        return Selection(self._org_id, self._outcomes, from_us(us_of(after)) - _CLOCKS_DIFFER)

    async def _read(self, tx: Transaction, which: Selection, ids: list[str]) -> list[RecentEvent]:
        if not ids:
            return []
        rows = await store.read_recent(tx, which, ids)
        accepted_at = {row.at for row in rows if row.outcome == "accepted"}
        entries = await store.count_entries(tx, self._org_id, accepted_at) if accepted_at else {}
        return [_event(row, entries) for row in rows]

    def _give(self, events: list[RecentEvent]) -> list[Given]:
        given: list[Given] = []
        for event in events:
            self._see([event.id])
            given.append((event, self.cursor))
        return given

    def _see(self, ids: list[str]) -> None:
        beyond = [each for each in ids if each > self._settled]
        self._seen.update(beyond)
        self._last = max([self._last, *beyond])

    def _settle(self, settled: str) -> None:
        if settled > self._settled:
            self._settled = settled
            self._seen = {each for each in self._seen if each > settled}


class TooManyFollowersError(Exception):
    """The organization, or this process, has as many followers as it may."""


class Followers:
    """Who follows tails of this process: not many, as each takes about a millisecond of it four times a second.

    All leave when `ended` is set.
    """

    def __init__(self, of_organization: int = 10, in_all: int = 50) -> None:
        self.ended = False
        self._most = of_organization
        self._most_in_all = in_all
        self._organizations: Counter[int] = Counter()

    @contextmanager
    def join(self, org_id: int) -> Iterator[None]:
        """Follow until the block ends; raise TooManyFollowersError."""
        if self._organizations[org_id] >= self._most or self._organizations.total() >= self._most_in_all:
            raise TooManyFollowersError
        self._organizations[org_id] += 1
        try:
            yield
        finally:
            self._organizations[org_id] -= 1

    async def follow(self, tail: Tail) -> AsyncGenerator[list[Given], None]:
        """Give what comes, four times a second whether or not something did, until all followers are told to leave."""
        while not self.ended:
            try:
                given = await tail.more()
            except (UnavailableError, ConflictError):
                given = []  # followers wait for the database, as everybody does
            yield given
            await asyncio.sleep(POLL_SECONDS)


def _event(row: RecentRow, entries: dict[str, int]) -> RecentEvent:
    return RecentEvent(
        row.id,
        row.at,
        row.outcome,
        row.event,
        row.contact_id,
        row.idempotency_key,
        None if row.payload is None else msgspec.Raw(row.payload),
        row.field,
        None if row.reason is None else str(Problem(row.field or "", row.reason)),
        None if row.body is None else msgspec.Raw(row.body),
        row.matched,
        entries.get(row.id, 0) if row.outcome == "accepted" else None,
    )


def _first_id(at_us: int) -> str:
    return uuid7_from(at_us, bytes(8))


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
