"""Which contacts reached a goal: their events since they entered, read a few at a time. SQL pre-selects them, filters are the language's.

However many contacts and events there are, only some thousand events are held at any moment.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from api.keyring import OrgKeys
from api.language.codec import decode, encode
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.facts import Arrival, Facts
from api.language.filter import matches
from api.language.preselect import forms
from api.language.settings import Goal
from api.language.trigger import BUILT_INS
from api.store import goals
from api.store.contacts import known_contacts
from api.store.database import Database
from api.store.goals import GoalEventRow, Search, Sought

MOST_EVENTS = 1_000  # of one contact, where filters choose among them
_HELD = 2_000  # events, of all contacts together
_ROOTS = (*BUILT_INS, "contact", "payload")


class Reached(msgspec.Struct, frozen=True):
    """Who reached the goal. `unknown`: of how many contacts more events came than are looked at, none of those the goal's.

    `events`: how many were judged.
    """

    contact_ids: frozenset[str]
    unknown: int = 0
    events: int = 0


async def find_reached(
    database: Database, org_id: int, keys: OrgKeys, goal: Goal, searches: Sequence[Search]
) -> Reached:
    """Return who of these contacts reached the goal; each is looked for once."""
    if not goal.filters:
        async with database.transaction() as tx:
            rows = await goals.list_goal_events(tx, org_id, Sought(goal.event), searches, 1)
        return Reached(frozenset(row.contact_id for row in rows))
    reached: set[str] = set()
    left, looked, judged = list(searches), 0, 0
    while left and looked < MOST_EVENTS:
        most = min(max(_HELD // len(left), 1), MOST_EVENTS - looked)
        seen = await _look(database, org_id, keys, _Round(goal, left, most))
        reached |= seen.reached
        left, looked, judged = seen.left, looked + most, judged + seen.events
    return Reached(frozenset(reached), len(left), judged)


class _Round(msgspec.Struct, frozen=True):
    """The next `most` events of each contact are looked at."""

    goal: Goal
    searches: Sequence[Search]
    most: int


class _Seen(msgspec.Struct, frozen=True):
    """Who reached the goal in a round; `left`: who did not, and where to go on, as there may be more events."""

    reached: set[str]
    left: list[Search]
    events: int


def _sought(goal: Goal) -> Sought:
    """Return what SQL looks for: by the first filter that says something about payloads alone."""
    asked = next(filter(None, (forms(each, _ROOTS) for each in goal.filters)), ())
    return Sought(goal.event, judged=True, forms=tuple(encode(each).decode() for each in asked))


async def _look(database: Database, org_id: int, keys: OrgKeys, wanted: _Round) -> _Seen:
    async with database.transaction() as tx:
        rows = await goals.list_goal_events(tx, org_id, _sought(wanted.goal), wanted.searches, wanted.most)
        contacts = await known_contacts(tx, org_id, keys, {row.contact_id for row in rows})
    return await asyncio.to_thread(_seen, wanted, rows, _Judge(wanted.goal, contacts, keys))


def _seen(wanted: _Round, rows: Sequence[GoalEventRow], judge: "_Judge") -> _Seen:
    searches = {each.contact_id: each for each in wanted.searches}
    reached, left = set(), []
    for contact_id, group in groupby(rows, lambda row: row.contact_id):
        events = list(group)
        if any(map(judge.is_goal, events)):
            reached.add(contact_id)
        elif len(events) == wanted.most:
            last = events[-1]
            left.append(msgspec.structs.replace(searches[contact_id], after_id=last.id, after=last.at))
    return _Seen(reached, left, len(rows))


class _Judge:
    """Tells whether an event is the goal's, as the interpreter does."""

    def __init__(self, goal: Goal, contacts: Mapping[str, Contact], keys: OrgKeys) -> None:
        self._goal = goal
        self._contacts = contacts
        self._keys = keys

    def is_goal(self, row: GoalEventRow) -> bool:
        """Return whether an event reaches the goal."""
        contact = self._contacts.get(row.contact_id)
        if contact is None or row.payload is None:
            return False
        email = None if row.email is None else self._keys.open_email(row.email)
        sent = Identifiers(row.wallet, email, row.external_id)
        arrival = Arrival(row.at, self._goal.event, sent, decode(row.payload))
        facts = Facts(self._goal.event, sent, arrival.payload, contact)
        return matches(self._goal.filters, facts.context_of(arrival))
