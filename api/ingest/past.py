"""One piece of an import, one transaction: the identity rules of live ingest, without automations, dated when it happened.

Locks are taken in the order of everybody (`store.locks`). Keys are claimed by COPY; once one was held, they are looked for first, so
that a file which is there already costs a look. Contacts that come back as they were cost a look, too. What a piece may lock is bounded: one that would
lock more is cut, and the rest is the caller's to bring again.
"""

from datetime import datetime

import msgspec

from api.clock import to_us
from api.ingest.counting import note_past
from api.ingest.directory import Directory
from api.ingest.lookup import place_strangers
from api.ingest.past_arrival import PastArrival
from api.ingest.returning import Memory
from api.ingest.writing import contact_writes
from api.store import history
from api.store.calls import Call, run
from api.store.clusters import number_added, own_number
from api.store.counting import reached
from api.store.database import Transaction
from api.store.ingest import ContactRows


class Piece(msgspec.Struct, frozen=True):
    """How many of the arrivals given are done; of these, how many were stored, and how many had come before."""

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


async def store_past(tx: Transaction, past: Past, arrivals: list[PastArrival], at: datetime) -> Piece:
    """Store the first of the arrivals whose key is new, in their order, at `at`."""
    fresh = await _fresh(tx, past, arrivals)
    if not fresh:
        return Piece(len(arrivals), 0, len(arrivals))
    directory = Directory(fresh)
    await past.memory.recognise(tx, directory, fresh)
    most = _lockable(fresh, past.most_locks)
    taken = len(arrivals) if most == len(fresh) else arrivals.index(fresh[most])
    await _store(tx, past, directory, fresh[:most], at)
    return Piece(taken, most, taken - most)


async def _fresh(tx: Transaction, past: Past, arrivals: list[PastArrival]) -> list[PastArrival]:
    """Return the arrivals whose key nobody holds; of those with the same key, the first."""
    first: dict[str, PastArrival] = {}
    for each in arrivals:
        first.setdefault(each.key_digest, each)
    if past.repeats:
        digests = sorted(first)
        (held,) = await run(tx, history.find_held_keys(past.org_id, digests))
        past.repeats = bool(held)
        for position in held:
            del first[digests[position]]
    return list(first.values())


def _lockable(fresh: list[PastArrival], most_locks: int) -> int:
    """Return how many of the arrivals, at least one, need no more locks than a transaction may take."""
    locks: set[object] = set()
    for number, each in enumerate(fresh):
        if not each.contact_id:
            locks.update(each.keys)
        elif each.news:
            locks.add(each.contact_id)
        if number and len(locks) > most_locks:
            return number
    return len(fresh)


async def _store(tx: Transaction, past: Past, directory: Directory, fresh: list[PastArrival], at: datetime) -> None:
    org_id = past.org_id
    await history.add_keys(tx, sorted([each.key_row for each in fresh]), at)
    (counted,) = await run(tx, reached(org_id))
    if strangers := [each for each in fresh if not each.contact_id]:
        written = {each.contact_id for each in fresh if each.contact_id and each.news}
        await place_strangers(tx, directory, fresh, strangers, written, to_us(at))
    directory.fold(fresh)
    number = await own_number(tx)
    past.memory.wrote(number - await number_added(tx), directory.changed())
    rows, contact_ids = [each.event_row for each in fresh], [each.contact_id for each in fresh]
    await history.add_past_events(tx, rows, contact_ids, number)
    await run(tx, *contact_writes(directory, at, add_contacts=lambda rows, at: _add_contacts(rows, fresh, at)))
    await note_past(tx, (org_id, past.source), [(each.event.name, each.occurred_us) for each in fresh], counted, at)


def _add_contacts(rows: ContactRows, fresh: list[PastArrival], at: datetime) -> Call[None]:
    """Return the call that stores new contacts, dated by the earliest of their events."""
    first_us: dict[str, int] = {}
    for each in fresh:
        first_us[each.contact_id] = min(each.occurred_us, first_us.get(each.contact_id, each.occurred_us))
    return history.add_past_contacts(rows, first_us, at)
