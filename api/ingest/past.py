"""One piece of an import, one transaction: the identity rules of live ingest, without automations, dated when it happened.

Locks are taken in the order of everybody (`store.locks`). First a piece claims its keys, by COPY; once one was held, they are looked for
first, so that a file which is there already costs a look. That needs nothing of the pieces before, and may be done while they are
being stored; all else follows in turn. Contacts that come back as they were cost a look, too. What a piece may lock is bounded:
`lockable` says how much of it can be brought.
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


class TooManyLocksError(Exception):
    """A piece would lock more than a transaction may: contacts it counted on were changed by others."""


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


async def claim(tx: Transaction, past: Past, given: PastEvents, at: datetime) -> PastEvents:
    """Claim the idempotency keys that are new at `at`; return the events that have them. Raises ConflictError (see `Past.repeats`)."""
    fresh = given.at(await _fresh(tx, past, given))
    if fresh:
        await copying.add_keys(tx, sorted(fresh.key_rows), at)
    return fresh


async def store_claimed(tx: Transaction, past: Past, given: PastEvents, fresh: PastEvents, at: datetime) -> Piece:
    """Store those of the events given that are fresh, but for `Piece.writes`; raise TooManyLocksError."""
    if not fresh:
        return Piece(len(given), 0, len(given))
    standing = await _stand(tx, past)
    met = await past.memory.recognise(tx, fresh)
    if len(fresh) > 1 and _locks(met) > 2 * past.most_locks:
        raise TooManyLocksError
    writes = await _store(tx, past, fresh, met, standing, at)
    new = [each for each in met.asked.values() if met.directory.has_created(each)]
    return Piece(len(given), len(fresh), len(given) - len(fresh), new, writes)


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


class _Standing(msgspec.Struct, frozen=True):
    """The number of the transaction, and up to where events are counted."""

    number: int
    counted: Reached | None


def _locks(met: Met) -> int:
    strangers = {key for each in met.asked.values() if not each.contact_id for key in each.keys}
    return len(strangers) + len({each.contact_id for each in met.asked.values() if each.news})


async def _store(
    tx: Transaction, past: Past, events: PastEvents, met: Met, standing: _Standing, at: datetime
) -> list[Call[None]]:
    await _place(tx, events, met, at)
    past.memory.wrote(met.directory.changed())
    who = [each.fields for each in events.people]
    parts = events.heads, events.payloads, events.tails, who
    await copying.add_past_events(tx, copying.PastRows(parts, met.contact_ids, events.ats_us), standing.number)
    writes = contact_writes(met.directory, at, add_contacts=lambda rows, at: _add_contacts(rows, met, at))
    dated = zip(events.names, events.ats_us, strict=True)
    return writes + past_notes((past.org_id, past.source), dated, standing.counted, at)


async def _stand(tx: Transaction, past: Past) -> _Standing:
    """Begin the part of a transaction that comes in turn, with its keys claimed."""
    added = await number_added(tx)
    number, seen, counted = await run(tx, own_number(added), history.snapshot(), reached(past.org_id))
    past.memory.begin(number - added, seen)
    return _Standing(number, counted)


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
