"""One piece of an import, one transaction: the identity rules of live ingest, without automations, dated when it happened.

Locks are taken in the order of everybody (`store.locks`). First a piece claims its keys, by COPY; once one was held, they are looked for
first, so that a file which is there already costs a look. Then it stores the events of people who were met before, and of people who
seem to be new, under the id that their contact will have. That needs nothing of the pieces before, and may be done while they are being
stored; all else follows in turn: whether those people are who they were taken for, their contacts, and all other events. What a piece may lock is bounded: `lockable` says how much of it can be brought.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.clock import to_us
from api.ingest.counting import past_notes
from api.ingest.lookup import learn_owners
from api.ingest.past_arrival import PastArrival, PastEvents
from api.ingest.returning import Memory, Met
from api.ingest.writing import contact_writes
from api.language.identity import Kind
from api.store import copying, history
from api.store.calls import Call, run
from api.store.clusters import number_added, own_number
from api.store.counting import Reached, reached
from api.store.database import Transaction
from api.store.ingest import ContactRows


class Piece(msgspec.Struct, frozen=True):
    """How many of the events given are done; of these, how many were stored, and how many had come before.

    `new`: those of new contacts; `writes`: what is still to be written, with the commit.
    """

    taken: int
    stored: int
    duplicates: int
    new: Sequence[PastArrival] = ()
    writes: Sequence[Call[None]] = ()


class Claimed(msgspec.Struct, frozen=True):
    """Events whose keys a transaction has claimed, and where it stores them (None: there are none)."""

    events: PastEvents
    target: copying.Target | None = None


class TooManyLocksError(Exception):
    """A piece would lock more than a transaction may: contacts it counted on were changed by others."""


class MovedError(Exception):
    """An event that was stored before its turn is about another contact by then."""


class Past(msgspec.Struct):
    """An organization whose history is stored: who was met, and how many identifiers, and again contacts, a piece may lock.

    `repeats`: whether keys are to be looked for because some have come before; else they are claimed at once, and a piece with one
    that is held fails as a whole (ConflictError). `source`: the id of the import, under which it notes what is late.
    """

    org_id: int
    memory: Memory
    most_locks: int
    source: str | None = None
    repeats: bool = False


def lockable(past: Past, events: PastEvents, start: int, most: int) -> int:
    """Return how many of the events from `start` on, at most `most` and at least one, need no more locks than a transaction may take.

    Whoever is not known takes locks for all identifiers, and who brings attributes one for the contact.
    """
    people, attributes = events.people[start : start + most], events.attributes[start : start + most]
    unknown = [person for person in people if not person.contact_id]
    if len(Kind) * len(unknown) + sum(map(bool, attributes)) <= past.most_locks:
        return len(people)
    locks: set[object] = set()
    for taken, (person, brought) in enumerate(zip(people, attributes, strict=True)):
        if not person.contact_id:
            locks.update(person.keys)
        elif brought:
            locks.add(person.contact_id)
        if taken and len(locks) > past.most_locks:
            return taken
    return len(people)


async def claim(tx: Transaction, past: Past, given: PastEvents, at: datetime) -> Claimed:
    """Claim the idempotency keys that are new at `at`; raise ConflictError (see `Past.repeats`)."""
    fresh = given.at(await _fresh(tx, past, given))
    if not fresh:
        return Claimed(fresh)
    await copying.add_keys(tx, sorted(fresh.key_rows), at)
    number, tables = await run(tx, own_number(await number_added(tx)), copying.find_tables(fresh.ats_us))
    return Claimed(fresh, copying.Target(tables, number))


async def store_expected(tx: Transaction, past: Past, claimed: Claimed) -> list[str]:
    """Store the claimed events whose contact is known or expected; return that for each, empty for those that are left."""
    contact_ids = past.memory.expected(claimed.events.people)
    await _copy(tx, claimed, contact_ids, [position for position, expected in enumerate(contact_ids) if expected])
    return contact_ids


async def store_rest(
    tx: Transaction, past: Past, given: PastEvents, claimed: Claimed, expected: Sequence[str], at: datetime
) -> Piece:
    """Store those of the events given that are claimed and were not stored as `expected`, but for `Piece.writes`.

    Raises TooManyLocksError, and MovedError if somebody is not who was expected.
    """
    fresh = claimed.events
    if claimed.target is None:
        return Piece(len(given), 0, len(given))
    counted = await _stand(tx, past, claimed.target.number)
    met = await past.memory.recognise(tx, fresh)
    if len(fresh) > 1 and _locks(met) > past.most_locks * 4 // 3:
        raise TooManyLocksError
    await _place(tx, fresh, met, at)
    past.memory.wrote(met.directory.changed())
    left = [position for position, was in enumerate(expected) if not was]
    if not _are_as_expected(met.contact_ids, expected, left):
        past.memory.expects_new = False
        raise MovedError
    await _copy(tx, claimed, met.contact_ids, left)
    new = [each for each in met.asked.values() if met.directory.has_created(each)]
    return Piece(len(given), len(fresh), len(given) - len(fresh), new, _writes(past, fresh, met, counted, at))


def _are_as_expected(contact_ids: list[str], expected: Sequence[str], left: Sequence[int]) -> bool:
    """Return whether all contacts but those `left` are who they were expected to be; lists are compared at once."""
    filled = list(expected)
    for position in left:
        filled[position] = contact_ids[position]
    return filled == contact_ids


async def _fresh(tx: Transaction, past: Past, given: PastEvents) -> Sequence[int]:
    """Return the positions of events whose key nobody holds; of those with the same key, the first."""
    if not past.repeats and len(set(given.key_digests)) == len(given):
        return range(len(given))
    first: dict[bytes, int] = {}
    for position, digest in enumerate(given.key_digests):
        first.setdefault(digest, position)
    if past.repeats:
        digests = sorted(first)
        (held,) = await run(tx, history.find_held_keys(past.org_id, [each.hex() for each in digests]))
        past.repeats = bool(held)
        for position in held:
            del first[digests[position]]
    return list(first.values())


def _locks(met: Met) -> int:
    strangers = {key for each in met.asked.values() if not each.contact_id for key in each.keys}
    return len(strangers) + len({each.contact_id for each in met.asked.values() if each.news})


def _writes(past: Past, events: PastEvents, met: Met, counted: Reached | None, at: datetime) -> list[Call[None]]:
    writes = contact_writes(met.directory, at, add_contacts=lambda rows, at: _add_contacts(rows, met, at))
    dated = zip(events.names, events.ats_us, strict=True)
    return writes + past_notes((past.org_id, past.source), dated, counted, at)


async def _copy(tx: Transaction, claimed: Claimed, contact_ids: Sequence[str], positions: Sequence[int]) -> None:
    events = claimed.events
    if positions and claimed.target is not None:
        parts = events.heads, events.payloads, events.tails, [each.fields for each in events.people]
        rows = copying.PastRows(parts, contact_ids, events.ats_us)
        await copying.add_past_events(tx, rows, positions, claimed.target)


async def _stand(tx: Transaction, past: Past, number: int) -> Reached | None:
    """Begin the part of a transaction that comes in turn, with its keys claimed; return up to where events are counted."""
    added = await number_added(tx)
    seen, counted = await run(tx, history.snapshot(), reached(past.org_id))
    past.memory.begin(number - added, seen)
    return counted


async def _place(tx: Transaction, events: PastEvents, met: Met, at: datetime) -> None:
    """Give strangers their contacts, and note what is to be written of all contacts."""
    asked = met.asked.values()
    if strangers := [each for each in asked if not each.contact_id]:
        written = {each.contact_id for each in asked if each.contact_id and each.news}
        await learn_owners(tx, met.directory, strangers, written)
        met.ask_for(events, met.directory.touched())
        met.directory.place(met.directory.involved(list(met.asked.values())), to_us(at))
    met.directory.fold(list(met.asked.values()))
    met.note()


def _add_contacts(rows: ContactRows, met: Met, at: datetime) -> Call[None]:
    """Return the call that stores new contacts, dated by the earliest of their events."""
    first_us: dict[str, int] = {}
    for each in met.asked.values():
        first_us[each.contact_id] = min(each.occurred_us, first_us.get(each.contact_id, each.occurred_us))
    return history.add_past_contacts(rows, first_us, at)
