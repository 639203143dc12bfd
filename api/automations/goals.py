"""The goal rate of an automation: how many of the contacts that entered reached its goal, by day, with the lift over
the holdout.

The goal is that of the live version. Treated and held-out contacts are measured the same way, from stored events: the
goal must occur within the attribution window of the contact's first entry. Later entries may be caused or prevented by
the automation itself; the first cannot. A contact stays on the side of that entry, whatever happens later (intention
to treat). Only versions since the holdout got its current size count: earlier ones held out other contacts, or none.

Events are read in pages, so that only a few thousand are in memory at a time, however many there are.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import takewhile

import msgspec

from api.automations.automations import Refusal, unknown
from api.clock import from_us, to_us, us_of, uuid7_from
from api.crypto import OrgKeys
from api.store import automations
from api.store.automations import LAST_ID, GoalEntries, GoalFilter, GoalWindow, VersionRow
from api.store.contacts import find_contact_states, identifiers_of
from api.store.database import Database
from api.store.events import EventRow
from workbench.language.advance import attribution_window
from workbench.language.channel import DEFAULT_POLICY, RetryPolicy
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState
from workbench.language.facts import Facts, LaterEvent
from workbench.language.graph import Goal, Graph, read_graph, read_settings
from workbench.language.lift import LiftGroup, lift
from workbench.language.responses import DayView, GoalView
from workbench.language.trigger import BUILT_INS, containment_patterns

COUNTED = 100_000  # entries of one measurement
MAX_FILTERED_EVENTS = 200_000  # events that filters are applied to, in all
MAX_DAYS = 366
MAX_EVENTS_PER_CONTACT = 1_000  # events of one contact that filters are applied to
_EVENTS_IN_MEMORY = 2_000  # for all contacts together
MAX_VERSIONS = 100  # the newest ones, in which the size of the holdout is looked up
PAGE, FILTERED_PAGE = 2_000, 200  # entries; with filters, events are read for each of them
_CLOCK_SKEW = timedelta(minutes=1)  # an entry that began while its version was being published may be a little older
_ROOTS = (*BUILT_INS, "contact", "payload")


class GoalContacts(msgspec.Struct, frozen=True):
    """The contacts that reached the goal.

    `unknown`: contacts with more events than are read, if none of the events that were read reaches the goal. `events`:
    the number of events that were read.
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
            events_by_contact = await automations.list_goal_events(tx, org_id, GoalFilter(goal.event), searches, 1)
        return GoalContacts(frozenset(events_by_contact))
    # SQL pre-selects by the first filter that depends on the payload alone; the interpreter's filters decide.
    patterns = next(filter(None, (containment_patterns(condition, _ROOTS) for condition in goal.filters)), ())
    preselection = GoalFilter(goal.event, with_payload=True, forms=tuple(encode(form).decode() for form in patterns))
    reached: set[str] = set()
    left, read, events = list(searches), 0, 0
    while left and read < MAX_EVENTS_PER_CONTACT:
        limit = min(max(_EVENTS_IN_MEMORY // len(left), 1), MAX_EVENTS_PER_CONTACT - read)
        async with database.transaction() as tx:
            page = await automations.list_goal_events(tx, org_id, preselection, left, limit)
            contacts = await find_contact_states(tx, org_id, keys, page)
        reached |= await asyncio.to_thread(_judge, goal, page, contacts, keys)
        # A contact with a full page may have more events.
        left = [
            msgspec.structs.replace(window, after_id=rows[-1].id, after=rows[-1].created_at)
            for window in left
            if window.contact_id not in reached and len(rows := page.get(window.contact_id, [])) == limit
        ]
        read, events = read + limit, events + sum(map(len, page.values()))
        del page, contacts  # so that only one page is in memory while the next one is read
    return GoalContacts(frozenset(reached), len(left), events)


def _judge(
    goal: Goal, page: Mapping[str, Sequence[EventRow]], contacts: Mapping[str, ContactState], keys: OrgKeys
) -> set[str]:
    reached: set[str] = set()
    for contact_id, contact in contacts.items():
        for row in page[contact_id]:
            sent = identifiers_of(row, keys.open_email)
            arrival = LaterEvent(row.created_at, goal.event, sent, decode(row.payload))
            if goal.accepts(Facts(goal.event, sent, arrival.payload, contact).context_of(arrival), arrival.at):
                reached.add(contact_id)
                break
    return reached


class Measurement(msgspec.Struct, frozen=True):
    """The goal of the live version. `since`: the version that set the current holdout size."""

    goal: Goal
    holdout: int
    since: VersionRow
    within: timedelta


async def measure_goal(
    database: Database,
    org_id: int,
    keys: OrgKeys,
    automation_id: str,
    days: int,
    now: datetime,
    retries: RetryPolicy = DEFAULT_POLICY,
    limit: int = COUNTED,
) -> GoalView | Refusal:
    """Return the goal rate over the newest `limit` entries of the window, or fewer if filters read too many events.

    `days`: the window before `now`. `retries` limits how long a message can take, and so the attribution window.
    """
    async with database.transaction() as tx:
        if await automations.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        versions = await automations.list_versions(tx, org_id, automation_id, MAX_VERSIONS)
    measurement = await asyncio.to_thread(read_measurement, versions, retries)
    if measurement is None:
        return GoalView(None, days)
    begins_at = now - timedelta(days=days)
    if measurement.since.version > 1:  # the first version published the automation: nothing is older
        begins_at = max(begins_at, measurement.since.published_at - _CLOCK_SKEW)
    since_id = uuid7_from(to_us(begins_at), bytes(8))
    entered = GoalEntries(org_id, automation_id, since_id, measurement.since.version)
    tally = await _count(database, keys, measurement, entered, limit)
    by_day = tuple(
        DayView(day, tally.side(day, held_out=False), tally.side(day, held_out=True))
        for day in sorted({day for day, _ in tally.contacts})
    )
    treated = sum((day.treated for day in by_day), LiftGroup())
    held_out = sum((day.held_out for day in by_day), LiftGroup())
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


def read_measurement(versions: Sequence[VersionRow], retries: RetryPolicy) -> Measurement | None:
    """Return the goal of the live version, given the versions newest first; None if it has none."""
    live = read_graph(decode(versions[0].graph)) if versions else ()
    if not isinstance(live, Graph) or live.settings.goal is None:
        return None
    holdout = live.settings.holdout
    *_, oldest = takewhile(
        lambda row: read_settings(decode(row.graph).get("settings"), "settings").holdout == holdout, versions
    )
    return Measurement(live.settings.goal, holdout, oldest, attribution_window(live, retries))


class _Tally:
    """Running counts: contacts, and contacts that reached the goal, by day and side."""

    def __init__(self) -> None:
        self.contacts: Counter[tuple[date, bool]] = Counter()
        self.reached: Counter[tuple[date, bool]] = Counter()
        self.entries = self.later_entries = self.mixed = self.unknown = self.events = 0
        self.cut_at: datetime | None = None

    def side(self, day: date, *, held_out: bool) -> LiftGroup:
        return LiftGroup(self.contacts[day, held_out], self.reached[day, held_out])


async def _count(
    database: Database, keys: OrgKeys, measurement: Measurement, entered: GoalEntries, limit: int
) -> _Tally:
    """Count page by page, from the newest entry backwards, each page in its own transaction."""
    tally, before_id = _Tally(), LAST_ID
    size = FILTERED_PAGE if measurement.goal.filters else PAGE
    while True:
        left = limit - tally.entries if tally.events < MAX_FILTERED_EVENTS else 0
        async with database.transaction() as tx:
            # At the limit one more entry is read: without it, everything was counted.
            rows = await automations.list_goal_entries(tx, entered, before_id, min(size, left) or 1)
            firsts = await automations.find_first_entries(tx, entered, {row.contact_id for row in rows})
        if rows and not left:
            tally.cut_at = from_us(us_of(before_id))
        if not rows or not left:
            return tally
        admitted = [(row, *firsts[row.contact_id]) for row in rows if row.contact_id in firsts]
        counted = [
            (row, mixed) for row, first_id, mixed in admitted if first_id == row.id and row.version >= entered.version
        ]
        searches = [GoalWindow(row.contact_id, row.event_id, row.at, row.at + measurement.within) for row, _ in counted]
        reached = await find_reached(database, entered.org_id, keys, measurement.goal, searches)
        tally.entries += len(rows)
        tally.later_entries += sum(first_id < row.id for row, first_id, _ in admitted)
        tally.mixed += sum(mixed for _, mixed in counted)
        tally.unknown += reached.unknown
        tally.events += reached.events
        for row, _ in counted:
            cell = row.at.astimezone(UTC).date(), row.held_out
            tally.contacts[cell] += 1
            tally.reached[cell] += row.contact_id in reached.contact_ids
        before_id = rows[-1].id
