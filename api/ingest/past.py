"""One piece of an import, one transaction: the identity rules of live ingest, without automations, dated when it happened.

Locks are taken in the order of everybody (`store.locks`). Keys are claimed by COPY; once one was held, they are looked for first, so
that a file which is there already costs a look. Contacts that come back as they were cost a look, too. What a piece may lock is bounded: one that would
lock more is cut, and the rest is the caller's to bring again.
"""

from datetime import datetime

import msgspec

from api.clock import to_us
from api.ingest.counting import note_past
from api.ingest.lookup import learn_owners
from api.ingest.past_arrival import PastEvents
from api.ingest.returning import Memory, Met
from api.ingest.writing import contact_writes
from api.store import history
from api.store.calls import Call, run
from api.store.clusters import number_added, own_number
from api.store.counting import reached
from api.store.database import Transaction
from api.store.ingest import ContactRows


class Piece(msgspec.Struct, frozen=True):
    """How many of the events given are done; of these, how many were stored, and how many had come before."""

    taken: int
    stored: int
    duplicates: int


NOTHING = Piece(0, 0, 0)


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


async def store_past(tx: Transaction, past: Past, given: PastEvents, at: datetime) -> Piece:
    """Store the first of the events whose key is new, in their order, at `at`."""
    fresh = await _fresh(tx, past, given)
    if not fresh:
        return Piece(len(given), 0, len(given))
    events = given.at(fresh)
    met = await past.memory.recognise(tx, events)
    most = _lockable(met, past.most_locks)
    taken = len(given) if most is None else fresh[most]
    if most is not None:
        events, met = events.span(0, most), met.first(most)
    await _store(tx, past, events, met, at)
    return Piece(taken, len(events), taken - len(events))


async def _fresh(tx: Transaction, past: Past, given: PastEvents) -> list[int]:
    """Return the positions of events whose key nobody holds; of those with the same key, the first."""
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


def _lockable(met: Met, most_locks: int) -> int | None:
    """Return the position, not the first, of the event from which on more locks would be needed than a transaction may take."""
    locks: set[object] = set()
    for position, each in met.asked.items():
        if not each.contact_id:
            locks.update(each.keys)
        elif each.news:
            locks.add(each.contact_id)
        if position and len(locks) > most_locks:
            return position
    return None


async def _store(tx: Transaction, past: Past, events: PastEvents, met: Met, at: datetime) -> None:
    org_id = past.org_id
    await history.add_keys(tx, sorted(events.key_rows), at)
    (counted,) = await run(tx, reached(org_id))
    await _place(tx, events, met, at)
    number = await own_number(tx)
    past.memory.wrote(number - await number_added(tx), met.directory.changed())
    who = [each.fields for each in events.people]
    await history.add_past_events(tx, (events.heads, events.payloads, events.tails, who), met.contact_ids, number)
    writes = contact_writes(met.directory, at, add_contacts=lambda rows, at: _add_contacts(rows, met, at))
    await run(tx, *writes)
    await note_past(tx, (org_id, past.source), zip(events.names, events.ats_us, strict=True), counted, at)


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
