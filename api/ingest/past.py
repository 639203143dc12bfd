"""One piece of an import, one transaction: the identity rules of live ingest, without automations, dated when it happened.

Locks are taken in the order of everybody (`store.locks`). Unlike a live batch, a piece takes them at once instead of looking
first whether anything changes hands: in a history it nearly always does.
"""

from datetime import datetime

from api.clock import from_us, to_us
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.ingest.lookup import all_keys, look_up
from api.ingest.writing import claim_keys, contact_writes, holders
from api.store import history
from api.store.calls import run
from api.store.clusters import own_number
from api.store.database import Transaction
from api.store.locks import lock_contacts, lock_identifiers


async def store_past(tx: Transaction, org_id: int, arrivals: list[Arrival], at: datetime) -> int:
    """Store the arrivals of one organization whose key is new, in their order, at `at`; return how many they were."""
    (new_keys,) = await run(tx, claim_keys(arrivals, at))
    fresh = arrivals
    if new_keys < len(arrivals):
        held = await holders(tx, arrivals)
        fresh = [each for each, holder in zip(arrivals, held, strict=True) if holder.event_id == each.event_id]
    if fresh:
        directory = await _locked(tx, fresh)
        directory.place(fresh, to_us(at))
        directory.fold(fresh)
        await run(tx, *contact_writes(directory, at))
        if created := directory.created().ids:
            await history.date_contacts(tx, org_id, _first_seen(fresh, set(created)))
        await history.add_past_events(tx, [_past_event(each) for each in fresh], await own_number(tx))
    return len(fresh)


async def _locked(tx: Transaction, fresh: list[Arrival]) -> Directory:
    """Return what the store knows of the arrivals' identifiers, with everything locked that they may change."""
    await lock_identifiers(tx, all_keys(fresh))
    directory = await look_up(tx, fresh)
    if owners := directory.contacts():
        await lock_contacts(tx, owners)
        directory = await look_up(tx, fresh)
    return directory


def _first_seen(fresh: list[Arrival], contact_ids: set[str]) -> dict[str, int]:
    """Return the earliest moment of each contact, in microseconds."""
    first: dict[str, int] = {}
    for each in fresh:
        if each.contact_id in contact_ids:
            first[each.contact_id] = min(each.occurred_us, first.get(each.contact_id, each.occurred_us))
    return first


def _past_event(arrival: Arrival) -> history.PastEvent:
    event = arrival.event
    return (
        arrival.org_id,
        arrival.event_id,
        arrival.contact_id,
        event.name,
        from_us(arrival.occurred_us).isoformat(),
        event.payload.decode(),
        arrival.idempotency_key,
        event.identifiers.wallet,
        arrival.email,
        event.identifiers.external_id,
    )
