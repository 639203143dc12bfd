"""What live ingest and imports write alike: the claim of idempotency keys, and contacts with all that belongs to them.

Locks are taken in the order of everybody (`store.locks`): idempotency keys, identifiers, contacts, each sorted.
"""

from datetime import datetime

from api.clock import to_us
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.language.problem import Problem, Problems
from api.store import ingest as store
from api.store.database import RefusedDataError, Transaction
from api.store.locks import lock_contacts

_OVERFULL = (Problem("attributes", "the contact would have more than 1,000 attributes, or more than 256 KB of them"),)


async def claim_keys(tx: Transaction, arrivals: list[Arrival], at: datetime) -> set[str]:
    """Claim the idempotency keys, sorted; return the ids of the events whose key was new."""
    if not arrivals:
        return set()
    first: dict[tuple[int, str], Arrival] = {}
    for arrival in arrivals:
        first.setdefault((arrival.org_id, arrival.key_digest), arrival)
    claims = [first[key] for key in sorted(first)]
    return await store.remember_keys(
        tx,
        [each.org_id for each in claims],
        [each.key_digest for each in claims],
        [each.event_id for each in claims],
        [each.body_digest for each in claims],
        at,
    )


async def write_contacts(tx: Transaction, directory: Directory, at: datetime) -> None:
    """Write what the directory decided about contacts; whoever owns identifiers differently now is locked already."""
    if (created := directory.created()).ids:
        await store.add_contacts(tx, created, at)
    if lost := directory.lost():
        org_ids, ids = zip(*lost, strict=True)
        await store.lose_emails(tx, org_ids, ids, at)
    if (gained := directory.gained()).ids:
        await store.fill_contacts(tx, gained, at)
    if (owned := directory.owned()).digests:
        await store.own_identifiers(tx, owned, at)
    if attributes := directory.attributes():
        org_ids, ids, texts = zip(*attributes, strict=True)
        await lock_contacts(tx, ids)
        await store.merge_attributes(tx, org_ids, ids, texts, at)
    if (conflicts := directory.conflicts(to_us(at))).ids:
        await store.add_conflicts(tx, conflicts, at)


def refusal_of(error: RefusedDataError) -> Problems:
    """Return what the sender of an event is told that the store refused when it stood alone."""
    return _OVERFULL if str(error) == store.OVERFULL else (Problem("", "cannot be stored"),)
