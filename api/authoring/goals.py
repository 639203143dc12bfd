"""The goal rate of an automation: of the contacts that entered, how many reached its goal, day by day, and what a holdout says of it.

The goal is that of the live version. Held-out and treated contacts are measured alike, by what was stored: whether the goal came within
the horizon of the first entry of the contact's life. Later entries the automation may have brought about, or kept away; that one it
cannot have. A contact stays on the side of that entry, whatever became of it later (intention to treat).
Only versions since the holdout has its size are counted: before that, others were held out, or nobody.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import takewhile

import msgspec

from api.authoring.reaching import Reached, find_reached
from api.authoring.refusal import Refusal, unknown
from api.clock import from_us, to_us, us_of, uuid7_from
from api.keyring import OrgKeys
from api.language.codec import decode
from api.language.graph import Graph, read_graph
from api.language.horizon import horizon
from api.language.lift import Lift, Side, lift
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.settings import Goal, Settings, read_settings
from api.store import authoring, goals
from api.store.authoring import VersionRow
from api.store.database import Database
from api.store.goals import LAST_ID, Entered, EntryRow, Search

COUNTED = 100_000  # entries
JUDGED = 200_000  # events, where filters choose among them
MOST_DAYS = 366
_MOST_VERSIONS = 100
_PAGE, _FILTERED_PAGE = 2_000, 200  # entries
_SKEW = timedelta(minutes=1)  # an entry that came while its version was being published may be a little older


class Asked(msgspec.Struct, frozen=True):
    """Of which automation, over how many days before now, and over how many of its newest entries at most.

    `retries`: how long a message may take.
    """

    automation_id: str
    days: int
    now: datetime
    most: int = COUNTED
    retries: RetryPolicy = DEFAULT_POLICY


class DayView(msgspec.Struct, frozen=True, rename="camel"):
    """The contacts whose first entry came on one day of UTC."""

    day: date
    treated: Side
    held_out: Side


class GoalView(msgspec.Struct, frozen=True, rename="camel"):
    """How many contacts reached the goal, of those that first entered in the last `days`, by `since_version` or a later one.

    `goal` None: the live version has none, or nothing is published. `holdout`: the percentage; of 0 there is no `lift`.
    `within_seconds`: how long after its first entry a contact may reach it.
    `later_entries`: of contacts that had entered before; they are not counted.
    `mixed`: contacts with entries on both sides, since two became one; each counts on the side of its first.
    `unknown`: contacts that count as not reaching it, although more events of its name came than are looked at.
    `cut_at`: there are too many entries or events; only entries since then are counted.
    """

    goal: str | None
    days: int
    holdout: int = 0
    since_version: int | None = None
    within_seconds: int = 0
    treated: Side = Side()
    held_out: Side = Side()
    lift: Lift | None = None
    by_day: tuple[DayView, ...] = ()
    later_entries: int = 0
    mixed: int = 0
    unknown: int = 0
    cut_at: datetime | None = None


class _Measured(msgspec.Struct, frozen=True):
    """What is measured: the live version's goal, since the version from which on the holdout has its size."""

    goal: Goal
    holdout: int
    since: VersionRow
    within: timedelta

    def begins_at(self, asked: Asked) -> datetime:
        """Return since when entries count: no earlier than what is measured was published."""
        days_ago = asked.now - timedelta(days=asked.days)
        return days_ago if self.since.version == 1 else max(days_ago, self.since.published_at - _SKEW)


async def goal_of(database: Database, org_id: int, keys: OrgKeys, asked: Asked) -> GoalView | Refusal:
    """Return the goal rate of an automation, over its newest entries of these days: 100,000, or fewer where filters take long."""
    async with database.transaction() as tx:
        if await authoring.find_automation(tx, org_id, asked.automation_id) is None:
            return unknown("automation")
        versions = await authoring.list_versions(tx, org_id, asked.automation_id, _MOST_VERSIONS)
    measured = await asyncio.to_thread(_measured, versions, asked.retries)
    if measured is None:
        return GoalView(None, asked.days)
    since_id = uuid7_from(to_us(measured.begins_at(asked)), bytes(8))
    entered = Entered(org_id, asked.automation_id, since_id, measured.since.version)
    tally = await _count(database, keys, measured, entered, asked.most)
    return _view(measured, asked.days, tally)


def _measured(versions: Sequence[VersionRow], retries: RetryPolicy) -> _Measured | None:
    """Return what is measured, by the published versions, the newest first; None where the live one has no goal."""
    live = read_graph(decode(versions[0].graph)) if versions else ()
    if not isinstance(live, Graph) or live.settings.goal is None:
        return None
    holdout = live.settings.holdout
    *_, oldest = takewhile(lambda row: _settings(row).holdout == holdout, versions)
    return _Measured(live.settings.goal, holdout, oldest, horizon(live, retries))


def _settings(row: VersionRow) -> Settings:
    return read_settings(decode(row.graph).get("settings"), "settings")


class _Tally:
    """What was counted so far: contacts, and those that reached the goal, by day and side."""

    def __init__(self) -> None:
        self.contacts: Counter[tuple[date, bool]] = Counter()
        self.reached: Counter[tuple[date, bool]] = Counter()
        self.entries = self.later_entries = self.mixed = self.unknown = self.events = 0
        self.cut_at: datetime | None = None

    def add(self, page: "_Page", reached: Reached) -> None:
        self.entries += page.entries
        self.later_entries += page.later_entries
        self.mixed += page.mixed
        self.unknown += reached.unknown
        self.events += reached.events
        for row in page.first:
            place = row.at.astimezone(UTC).date(), row.held_out
            self.contacts[place] += 1
            self.reached[place] += row.contact_id in reached.contact_ids

    def side(self, day: date, *, held_out: bool) -> Side:
        return Side(self.contacts[day, held_out], self.reached[day, held_out])


class _Page(msgspec.Struct, frozen=True):
    """Some entries: how many, how many of contacts that had entered before, and those from which their contacts count."""

    entries: int
    later_entries: int
    mixed: int
    first: Sequence[EntryRow]
    last_id: str


async def _count(database: Database, keys: OrgKeys, measured: _Measured, entered: Entered, most: int) -> _Tally:
    """Count page by page, from the newest entry back, each page in a transaction of its own."""
    tally, before_id = _Tally(), LAST_ID
    size = _FILTERED_PAGE if measured.goal.filters else _PAGE
    while True:
        left = most - tally.entries if tally.events < JUDGED else 0
        page = await _page(database, entered, before_id, min(size, left) or 1)
        if page is not None and not left:
            tally.cut_at = from_us(us_of(before_id))
        if page is None or not left:
            return tally
        searches = [Search(row.contact_id, row.event_id, row.at, row.at + measured.within) for row in page.first]
        tally.add(page, await find_reached(database, entered.org_id, keys, measured.goal, searches))
        before_id = page.last_id


async def _page(database: Database, entered: Entered, before_id: str, most: int) -> _Page | None:
    """Return the next entries; None where there are none."""
    async with database.transaction() as tx:
        rows = await goals.list_entries(tx, entered, before_id, most)
        firsts = await goals.find_first_entries(tx, entered, {row.contact_id for row in rows})
    if not rows:
        return None
    known = [(row, firsts[row.contact_id]) for row in rows if row.contact_id in firsts]
    counted = [(row, first) for row, first in known if first.entry_id == row.id and row.version >= entered.version]
    return _Page(
        len(rows),
        sum(first.entry_id < row.id for row, first in known),
        sum(first.mixed for _, first in counted),
        [row for row, _ in counted],
        rows[-1].id,
    )


def _view(measured: _Measured, days: int, tally: _Tally) -> GoalView:
    by_day = tuple(
        DayView(day, tally.side(day, held_out=False), tally.side(day, held_out=True))
        for day in sorted({day for day, _ in tally.contacts})
    )
    treated = sum((each.treated for each in by_day), Side())
    held_out = sum((each.held_out for each in by_day), Side())
    return GoalView(
        measured.goal.event,
        days,
        measured.holdout,
        measured.since.version,
        measured.within // timedelta(seconds=1),
        treated,
        held_out,
        lift(treated, held_out) if measured.holdout else None,
        by_day,
        tally.later_entries,
        tally.mixed,
        tally.unknown,
        tally.cut_at,
    )
