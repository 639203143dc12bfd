"""The goal rate of an automation: of the contacts that entered, how many reached its goal, day by day, and what a holdout says of it.

The goal is that of the live version. Held-out and treated contacts are measured alike, by the events that were stored: whether
one of the goal's came within the horizon of the contact's first entry. SQL pre-selects by name and time; filters are the language's.
Only versions since the holdout has its size are counted: before that, others were held out, or nobody.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import groupby, takewhile

import msgspec

from api.authoring.refusal import Refusal, unknown
from api.clock import to_us, uuid7_from
from api.keyring import OrgKeys
from api.language.codec import decode
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.facts import Arrival, Facts
from api.language.filter import matches
from api.language.graph import Graph, read_graph
from api.language.horizon import horizon
from api.language.lift import Lift, Side, lift
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.settings import Goal, Settings, read_settings
from api.store import authoring, goals
from api.store.authoring import VersionRow
from api.store.contacts import known_contacts
from api.store.database import Database, Transaction
from api.store.goals import Entered, EntrantsRow, GoalEventRow

COUNTED = 100_000
MOST_EVENTS = 100  # of one contact, where filters choose among them
MOST_DAYS = 366
_MOST_VERSIONS = 100
_CONTACTS_AT_ONCE = 1_000


class Asked(msgspec.Struct, frozen=True):
    """Of which automation, and over how many days before now. `retries`: how long a message may take."""

    automation_id: str
    days: int
    now: datetime
    retries: RetryPolicy = DEFAULT_POLICY


class DayView(msgspec.Struct, frozen=True, rename="camel"):
    """The contacts whose first entry came on one day of UTC."""

    day: date
    treated: Side
    held_out: Side


class GoalView(msgspec.Struct, frozen=True, rename="camel"):
    """How many contacts reached the goal, of those that entered in the last `days` by `since_version` or a later one.

    `goal` None: the live version has none, or nothing is published. `holdout`: the percentage; of 0 there is no `lift`.
    `within_seconds`: how long after its first entry a contact may reach it.
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


class _Measured(msgspec.Struct, frozen=True):
    """What is measured: the live version's goal, since the version from which on the holdout has its size."""

    goal: Goal
    holdout: int
    since_version: int
    within: timedelta


async def goal_of(database: Database, org_id: int, keys: OrgKeys, asked: Asked) -> GoalView | Refusal:
    """Return the goal rate of an automation, over its newest 100,000 entries of these days."""
    async with database.transaction() as tx:
        if await authoring.find_automation(tx, org_id, asked.automation_id) is None:
            return unknown("automation")
        versions = await authoring.list_versions(tx, org_id, asked.automation_id, _MOST_VERSIONS)
    measured = await asyncio.to_thread(_measured, versions, asked.retries)
    if measured is None:
        return GoalView(None, asked.days)
    since_id = uuid7_from(to_us(asked.now - timedelta(days=asked.days)), bytes(8))
    known = (org_id, asked.automation_id, since_id, measured.since_version, COUNTED)
    entered = Entered(*known, measured.goal.event, measured.within)
    async with database.transaction() as tx:
        counted = await goals.count_entrants(tx, entered)
        if not measured.goal.filters:
            return _view(measured, asked.days, counted)
        rows = await goals.list_goal_events(tx, entered, MOST_EVENTS)
        contacts = await _contacts(tx, org_id, keys, rows)
    reached = await asyncio.to_thread(_reached, _Judge(measured.goal, contacts, keys), rows)
    judged = [msgspec.structs.replace(each, came=reached[each.day, each.held_out]) for each in counted]
    return _view(measured, asked.days, judged)


def _measured(versions: Sequence[VersionRow], retries: RetryPolicy) -> _Measured | None:
    """Return what is measured, by the published versions, the newest first; None where the live one has no goal."""
    live = read_graph(decode(versions[0].graph)) if versions else ()
    if not isinstance(live, Graph) or live.settings.goal is None:
        return None
    holdout = live.settings.holdout
    alike = takewhile(lambda row: _settings(row).holdout == holdout, versions)
    return _Measured(live.settings.goal, holdout, min(row.version for row in alike), horizon(live, retries))


def _settings(row: VersionRow) -> Settings:
    return read_settings(decode(row.graph).get("settings"), "settings")


async def _contacts(tx: Transaction, org_id: int, keys: OrgKeys, rows: Sequence[GoalEventRow]) -> dict[str, Contact]:
    """Return the contacts of these events: filters may look at them."""
    ids = list({row.contact_id for row in rows})
    found: dict[str, Contact] = {}
    for start in range(0, len(ids), _CONTACTS_AT_ONCE):
        found |= await known_contacts(tx, org_id, keys, ids[start : start + _CONTACTS_AT_ONCE])
    return found


class _Judge:
    """Tells whether an event is the goal's, as the interpreter does."""

    def __init__(self, goal: Goal, contacts: Mapping[str, Contact], keys: OrgKeys) -> None:
        self._goal = goal
        self._contacts = contacts
        self._keys = keys

    def is_goal(self, row: GoalEventRow) -> bool:
        """Return whether an event reaches the goal."""
        contact = self._contacts.get(row.contact_id)
        if contact is None:
            return False
        email = None if row.email is None else self._keys.open_email(row.email)
        sent = Identifiers(row.wallet, email, row.external_id)
        arrival = Arrival(row.at, self._goal.event, sent, decode(row.payload))
        facts = Facts(self._goal.event, sent, arrival.payload, contact)
        return matches(self._goal.filters, facts.context_of(arrival))


def _reached(judge: _Judge, rows: Sequence[GoalEventRow]) -> Counter[tuple[date, bool]]:
    """Return how many contacts reached the goal, by day and side."""
    found: Counter[tuple[date, bool]] = Counter()
    for _, group in groupby(rows, lambda row: row.contact_id):
        events = list(group)
        found[events[0].day, events[0].held_out] += any(map(judge.is_goal, events))
    return found


def _view(measured: _Measured, days: int, rows: Sequence[EntrantsRow]) -> GoalView:
    sides = {(row.day, row.held_out): Side(row.contacts, row.came) for row in rows}
    treated = sum((side for (_, held_out), side in sides.items() if not held_out), Side())
    held_out = sum((side for (_, held_out), side in sides.items() if held_out), Side())
    by_day = [
        DayView(day, sides.get((day, False), Side()), sides.get((day, True), Side()))
        for day in sorted({day for day, _ in sides})
    ]
    return GoalView(
        measured.goal.event,
        days,
        measured.holdout,
        measured.since_version,
        measured.within // timedelta(seconds=1),
        treated,
        held_out,
        lift(treated, held_out) if measured.holdout else None,
        tuple(by_day),
    )
