"""What all roads of events write alike: the claim of idempotency keys, contacts with all that belongs to them, entries.

Locks are taken in the order of everybody (`store.locks`): idempotency keys, identifiers, contacts, each sorted.
"""

from collections.abc import Callable, Collection
from datetime import datetime

from api.clock import to_us
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.ingest.matching import Active
from api.language.problem import Problem, Problems
from api.store import ingest as store
from api.store.calls import Call, run
from api.store.database import RefusedDataError, Transaction
from api.store.locks import hold_contacts

_OVERFULL = (Problem("attributes", "the contact would have more than 1,000 attributes, or more than 256 KB of them"),)


def claim_keys(arrivals: list[Arrival], at: datetime) -> Call[int]:
    """Claim the idempotency keys, sorted; how many of them were new: as many as arrivals, unless one came again."""
    first: dict[tuple[int, str], Arrival] = {}
    for arrival in arrivals:
        first.setdefault((arrival.org_id, arrival.key_digest), arrival)
    claims = [first[key] for key in sorted(first)]
    return store.remember_keys(
        [each.org_id for each in claims],
        [each.key_digest for each in claims],
        [each.event_id for each in claims],
        [each.body_digest for each in claims],
        at,
    )


async def holders(tx: Transaction, arrivals: list[Arrival]) -> list[store.Holder]:
    """Return who holds the idempotency key of each arrival, once they are claimed."""
    keys = [each.org_id for each in arrivals], [each.key_digest for each in arrivals]
    (found,) = await run(tx, store.find_holders(*keys))
    return [found[position] for position in range(len(arrivals))]


def contact_writes(
    directory: Directory,
    at: datetime,
    held: Collection[str] = (),
    add_contacts: Callable[[store.ContactRows, datetime], Call[None]] = store.add_contacts,
) -> list[Call[None]]:
    """Return the calls that write what the directory decided about contacts, and lock those of `held` as well.

    Whoever owns identifiers differently now is locked already.
    """
    calls: list[Call[None]] = []
    if (created := directory.created()).ids:
        calls.append(add_contacts(created, at))
    if lost := directory.lost():
        org_ids, ids = zip(*lost, strict=True)
        calls.append(store.lose_emails(org_ids, ids, at))
    if (gained := directory.gained()).ids:
        calls.append(store.fill_contacts(gained, at))
    if (owned := directory.owned()).digests:
        calls.append(store.own_identifiers(owned, at))
    attributes = directory.attributes()
    if locked := {contact_id for _, contact_id, _ in attributes}.union(held):
        calls.append(hold_contacts(locked))
    if attributes:
        org_ids, ids, texts = zip(*attributes, strict=True)
        calls.append(store.merge_attributes(org_ids, ids, texts, at))
    if (conflicts := directory.conflicts(to_us(at))).ids:
        calls.append(store.add_conflicts(conflicts, at))
    return calls


def add_entry(rows: store.EntryRows, arrival: Arrival, active: Active, entry_id: str) -> None:
    """Add the entry of an event in an automation."""
    rows.org_ids.append(arrival.org_id)
    rows.ids.append(entry_id)
    rows.automation_ids.append(active.automation_id)
    rows.versions.append(active.version)
    rows.stints.append(active.stint)
    rows.event_ids.append(arrival.event_id)
    rows.contact_ids.append(arrival.contact_id)
    rows.request_ids.append(arrival.request_id)


def refusal_of(error: RefusedDataError) -> Problems:
    """Return what the sender of an event is told that the store refused when it stood alone."""
    return _OVERFULL if str(error) == store.OVERFULL else (Problem("", "cannot be stored"),)
