"""The goal rate of an automation: of the contacts that entered, how many reached its goal, per day, and the uplift over the holdout.

The goal is that of the live version. Treated and held-out contacts are measured the same way, from stored events: the goal
must occur within the attribution window of the contact's first entry. Later entries may be caused or prevented by the
automation itself; the first cannot. A contact stays on the side of that entry, whatever happens later (intention to treat).
Only versions since the holdout has its current size count: before that, other contacts were held out, or none.

Events are read in pages: SQL pre-selects them, and the interpreter's filters decide. However many contacts and events there
are, only some thousand events are in memory at a time.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby, takewhile

import msgspec

from api.automations.automations import Refusal, unknown
from api.clock import from_us, to_us, us_of, uuid7_from
from api.crypto import OrgKeys
from api.store import automations
from api.store.automations import LAST_ID, GoalEntries, GoalEntryRow, GoalEventRow, GoalFilter, GoalWindow, VersionRow
from api.store.contacts import find_contact_states
from api.store.database import Database
from workbench.language.advance import attribution_window
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import Facts, LaterEvent
from workbench.language.filter import matches
from workbench.language.graph import AutomationSettings, Goal, Graph, read_graph, read_settings
from workbench.language.run import DEFAULT_POLICY, RetryPolicy
from workbench.language.trigger import BUILT_INS, containment_patterns
from workbench.language.uplift import Lift, UpliftGroup, lift

COUNTED = 100_000  # entries
MAX_FILTERED_EVENTS = 200_000  # events that filters are applied to, in all
MAX_DAYS = 366
MAX_EVENTS_PER_CONTACT = 1_000  # events of one contact that filters are applied to
_EVENTS_IN_MEMORY = 2_000  # of all contacts together
_MAX_VERSIONS = 100
_PAGE, _FILTERED_PAGE = 2_000, 200  # entries
_CLOCK_SKEW = timedelta(minutes=1)  # an entry that began while its version was being published may be a little older
_ROOTS = (*BUILT_INS, "contact", "payload")


class GoalContacts(msgspec.Struct, frozen=True):
    """The contacts that reached the goal. `unknown`: contacts with more events than are read, none of those read being the goal's.

    `events`: the number of events that were read.
    """

    contact_ids: frozenset[str]
    unknown: int = 0
    events: int = 0


async def find_reached(
    database: Database, org_id: int, keys: OrgKeys, goal: Goal, searches: Sequence[GoalWindow]
) -> GoalContacts:
    """Return the contacts that reached the goal within their windows; a contact has one window."""
    if not goal.filters:
        async with database.transaction() as tx:
            rows = await automations.list_goal_events(tx, org_id, GoalFilter(goal.event), searches, 1)
        return GoalContacts(frozenset(row.contact_id for row in rows))
    reached: set[str] = set()
    left, read, judged = list(searches), 0, 0
    while left and read < MAX_EVENTS_PER_CONTACT:
        limit = min(max(_EVENTS_IN_MEMORY // len(left), 1), MAX_EVENTS_PER_CONTACT - read)
        result = await _run_round(database, org_id, keys, _Round(goal, left, limit))
        reached |= result.reached
        left, read, judged = result.left, read + limit, judged + result.events
    return GoalContacts(frozenset(reached), len(left), judged)


class _Round(msgspec.Struct, frozen=True):
    """One read of the next `limit` events of every contact."""

    goal: Goal
    searches: Sequence[GoalWindow]
    limit: int


class _RoundResult(msgspec.Struct, frozen=True):
    """The result of a round: contacts that reached the goal, and the windows in which there may be more events."""

    reached: set[str]
    left: list[GoalWindow]
    events: int


def _preselection(goal: Goal) -> GoalFilter:
    """Return the pre-selection in SQL: by the first filter that depends on the payload alone."""
    patterns = next(filter(None, (containment_patterns(condition, _ROOTS) for condition in goal.filters)), ())
    return GoalFilter(goal.event, with_payload=True, forms=tuple(encode(pattern).decode() for pattern in patterns))


async def _run_round(database: Database, org_id: int, keys: OrgKeys, round_: _Round) -> _RoundResult:
    async with database.transaction() as tx:
        rows = await automations.list_goal_events(tx, org_id, _preselection(round_.goal), round_.searches, round_.limit)
        contacts = await find_contact_states(tx, org_id, keys, {row.contact_id for row in rows})
    return await asyncio.to_thread(_judge_round, round_, rows, _Judge(round_.goal, contacts, keys))


def _judge_round(round_: _Round, rows: Sequence[GoalEventRow], judge: "_Judge") -> _RoundResult:
    searches = {window.contact_id: window for window in round_.searches}
    reached, left = set(), []
    for contact_id, group in groupby(rows, lambda row: row.contact_id):
        events = list(group)
        if any(map(judge.is_goal, events)):
            reached.add(contact_id)
        elif len(events) == round_.limit:
            last = events[-1]
            left.append(msgspec.structs.replace(searches[contact_id], after_id=last.id, after=last.at))
    return _RoundResult(reached, left, len(rows))


class _Judge:
    """Decides whether an event reaches the goal, with the interpreter's own filters."""

    def __init__(self, goal: Goal, contacts: Mapping[str, ContactState], keys: OrgKeys) -> None:
        self._goal = goal
        self._contacts = contacts
        self._keys = keys

    def is_goal(self, row: GoalEventRow) -> bool:
        contact = self._contacts.get(row.contact_id)
        if contact is None or row.payload is None:
            return False
        email = None if row.email is None else self._keys.open_email(row.email)
        sent = Identifiers(row.wallet, email, row.external_id)
        arrival = LaterEvent(row.at, self._goal.event, sent, decode(row.payload))
        facts = Facts(self._goal.event, sent, arrival.payload, contact)
        return matches(self._goal.filters, facts.context_of(arrival))


class GoalRequest(msgspec.Struct, frozen=True):
    """The automation, the window in days before `now`, and the maximum number of its newest entries to count.

    `retries`: they bound how long a message may take, and so the attribution window.
    """

    automation_id: str
    days: int
    now: datetime
    limit: int = COUNTED
    retries: RetryPolicy = DEFAULT_POLICY


class DayView(msgspec.Struct, frozen=True, rename="camel"):
    """The contacts that first entered on one UTC day."""

    day: date
    treated: UpliftGroup
    held_out: UpliftGroup


class GoalView(msgspec.Struct, frozen=True, rename="camel"):
    """How many contacts reached the goal, of those that first entered in the last `days` with `since_version` or a later one.

    `goal` None: the live version has no goal, or nothing is published. `holdout`: in percent; without one there is no `lift`.
    `within_seconds`: the time after its first entry in which a contact can reach the goal.
    `later_entries`: entries of contacts that had entered before; they are not counted.
    `mixed`: merged contacts with entries on both sides; each counts on the side of its first entry.
    `unknown`: contacts with more events of this name than are read; they count as not reaching the goal.
    `cut_at`: there are too many entries or events; only entries since this time are counted.
    """

    goal: str | None
    days: int
    holdout: int = 0
    since_version: int | None = None
    within_seconds: int = 0
    treated: UpliftGroup = UpliftGroup()
    held_out: UpliftGroup = UpliftGroup()
    lift: Lift | None = None
    by_day: tuple[DayView, ...] = ()
    later_entries: int = 0
    mixed: int = 0
    unknown: int = 0
    cut_at: datetime | None = None


class _Measurement(msgspec.Struct, frozen=True):
    """The goal of the live version, and the oldest version since which the holdout has its current size."""

    goal: Goal
    holdout: int
    since: VersionRow
    within: timedelta

    def begins_at(self, goal_request: GoalRequest) -> datetime:
        """Return the start of the window, but no earlier than the publication of the oldest version."""
        days_ago = goal_request.now - timedelta(days=goal_request.days)
        return days_ago if self.since.version == 1 else max(days_ago, self.since.published_at - _CLOCK_SKEW)


async def measure_goal(database: Database, org_id: int, keys: OrgKeys, goal_request: GoalRequest) -> GoalView | Refusal:
    """Return the goal rate over the newest entries of the window: 100,000, or fewer if filters have to read many events."""
    async with database.transaction() as tx:
        if await automations.find_automation(tx, org_id, goal_request.automation_id) is None:
            return unknown("automation")
        versions = await automations.list_versions(tx, org_id, goal_request.automation_id, _MAX_VERSIONS)
    measurement = await asyncio.to_thread(_measurement, versions, goal_request.retries)
    if measurement is None:
        return GoalView(None, goal_request.days)
    since_id = uuid7_from(to_us(measurement.begins_at(goal_request)), bytes(8))
    entered = GoalEntries(org_id, goal_request.automation_id, since_id, measurement.since.version)
    tally = await _count(database, keys, measurement, entered, goal_request.limit)
    return _view(measurement, goal_request.days, tally)


def _measurement(versions: Sequence[VersionRow], retries: RetryPolicy) -> _Measurement | None:
    """Return the goal of the live version, given the versions newest first; None if it has none."""
    live = read_graph(decode(versions[0].graph)) if versions else ()
    if not isinstance(live, Graph) or live.settings.goal is None:
        return None
    holdout = live.settings.holdout
    *_, oldest = takewhile(lambda row: _settings(row).holdout == holdout, versions)
    return _Measurement(live.settings.goal, holdout, oldest, attribution_window(live, retries))


def _settings(row: VersionRow) -> AutomationSettings:
    return read_settings(decode(row.graph).get("settings"), "settings")


class _Tally:
    """Running counts: contacts, and contacts that reached the goal, by day and side."""

    def __init__(self) -> None:
        self.contacts: Counter[tuple[date, bool]] = Counter()
        self.reached: Counter[tuple[date, bool]] = Counter()
        self.entries = self.later_entries = self.mixed = self.unknown = self.events = 0
        self.cut_at: datetime | None = None

    def add(self, page: "_Page", reached: GoalContacts) -> None:
        self.entries += page.entries
        self.later_entries += page.later_entries
        self.mixed += page.mixed
        self.unknown += reached.unknown
        self.events += reached.events
        for row in page.first:
            cell = row.at.astimezone(UTC).date(), row.held_out
            self.contacts[cell] += 1
            self.reached[cell] += row.contact_id in reached.contact_ids

    def side(self, day: date, *, held_out: bool) -> UpliftGroup:
        return UpliftGroup(self.contacts[day, held_out], self.reached[day, held_out])


class _Page(msgspec.Struct, frozen=True):
    """A page of entries: how many, how many of contacts that had entered before, and the first entries of the others."""

    entries: int
    later_entries: int
    mixed: int
    first: Sequence[GoalEntryRow]
    last_id: str


async def _count(
    database: Database, keys: OrgKeys, measurement: _Measurement, entered: GoalEntries, limit: int
) -> _Tally:
    """Count page by page, from the newest entry backwards, each page in its own transaction."""
    tally, before_id = _Tally(), LAST_ID
    size = _FILTERED_PAGE if measurement.goal.filters else _PAGE
    while True:
        left = limit - tally.entries if tally.events < MAX_FILTERED_EVENTS else 0
        page = await _page(database, entered, before_id, min(size, left) or 1)
        if page is not None and not left:
            tally.cut_at = from_us(us_of(before_id))
        if page is None or not left:
            return tally
        searches = [GoalWindow(row.contact_id, row.event_id, row.at, row.at + measurement.within) for row in page.first]
        tally.add(page, await find_reached(database, entered.org_id, keys, measurement.goal, searches))
        before_id = page.last_id


async def _page(database: Database, entered: GoalEntries, before_id: str, limit: int) -> _Page | None:
    """Return the next page; None if there are no more entries."""
    async with database.transaction() as tx:
        rows = await automations.list_goal_entries(tx, entered, before_id, limit)
        firsts = await automations.find_first_entries(tx, entered, {row.contact_id for row in rows})
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


def _view(measurement: _Measurement, days: int, tally: _Tally) -> GoalView:
    by_day = tuple(
        DayView(day, tally.side(day, held_out=False), tally.side(day, held_out=True))
        for day in sorted({day for day, _ in tally.contacts})
    )
    treated = sum((day.treated for day in by_day), UpliftGroup())
    held_out = sum((day.held_out for day in by_day), UpliftGroup())
    return GoalView(
        measurement.goal.event,
        days,
        measurement.holdout,
        measurement.since.version,
        measurement.within // timedelta(seconds=1),
        treated,
        held_out,
        lift(treated, held_out) if measurement.holdout else None,
        by_day,
        tally.later_entries,
        tally.mixed,
        tally.unknown,
        tally.cut_at,
    )
