"""One micro-batch, one transaction: remember keys, resolve contacts, store events, match, enter.

Mostly two round trips: what must be known, and what is written, with the commit. One or two more when events bring new
contacts or identifiers change hands. A handful of statements whatever the size. Locks are taken in the order of everybody (`store.locks`):
idempotency keys, identifiers, contacts, entries; so two batches wait for each other and never in a circle. An event that an
entry may wait for is stored under the lock of its contact: see `engine.record` for why no wake-up is lost.
"""

from datetime import datetime

from api.clock import to_us, uuid7
from api.ingest.arrival import Arrival
from api.ingest.counting import note_stragglers
from api.ingest.directory import Directory
from api.ingest.lookup import ask, look_up, place_strangers
from api.ingest.matching import Active, Matcher, Triggers
from api.ingest.outcome import DryRun, Duplicate, Outcome, Stored
from api.ingest.writing import claim_keys, contact_writes, holders
from api.store import ingest as store
from api.store.calls import COMMIT, Call, run
from api.store.clusters import number_added
from api.store.database import Transaction
from api.store.triggers import standing
from api.store.wake import WAKE_ENGINE


async def store_batch(tx: Transaction, arrivals: list[Arrival], triggers: Triggers, at: datetime) -> list[Outcome]:
    """Store arrivals received at `at` and commit; return the outcome of each, in their order."""
    live = [each for each in arrivals if not each.dry]
    dry = [each for each in arrivals if each.dry]
    org_ids = list({each.org_id for each in arrivals})
    added = await number_added(tx)
    new_keys, stand, owners = await run(tx, claim_keys(live, at), standing(org_ids), ask(live))
    matcher = await triggers.at(tx, stand.epochs)
    directory = Directory(arrivals)
    directory.recognise(live, owners)
    fresh = live if new_keys == len(live) else await _without_duplicates(tx, live, at)
    if strangers := [each for each in fresh if not each.contact_id]:
        written = {each.contact_id for each in fresh if each.contact_id and (each.news or matcher.awaits(each))}
        await place_strangers(tx, directory, fresh, strangers, written, to_us(at))
    directory.fold(fresh)
    await note_stragglers(tx, ((each.org_id, each.event.name) for each in fresh), at, stand.closed_until)
    outcomes: dict[str, Outcome] = {}
    writes = _writes(fresh, directory, matcher, outcomes, at, added)
    if dry:
        await run(tx, *writes)
        outcomes |= await _dry_run(tx, dry, matcher, at)
        writes = []
    answers = [outcomes.get(each.event_id) or Duplicate(each.idempotency_key) for each in arrivals]
    await run(tx, *writes, COMMIT)
    return answers


async def _without_duplicates(tx: Transaction, live: list[Arrival], at: datetime) -> list[Arrival]:
    """Return the arrivals that hold their keys; of the others, keep the keys that came with another body."""
    held = await holders(tx, live)
    different = [
        (each.org_id, holder.event_id)
        for each, holder in zip(live, held, strict=True)
        if holder.event_id != each.event_id and holder.body_digest != each.body_digest
    ]
    if different:
        org_ids, event_ids = zip(*different, strict=True)
        await run(tx, store.add_mismatches(org_ids, [uuid7(to_us(at)) for _ in different], event_ids, at))
    return [each for each, holder in zip(live, held, strict=True) if holder.event_id == each.event_id]


def _writes(
    fresh: list[Arrival],
    directory: Directory,
    matcher: Matcher,
    outcomes: dict[str, Outcome],
    at: datetime,
    added: int,
) -> list[Call[None]]:
    """Return all that is to be written for new events, and note their outcomes; `added`: `clusters.number_added`."""
    if not fresh:
        return []
    awaited = [(each.org_id, each.contact_id, each.event.name) for each in fresh if matcher.awaits(each)]
    calls = [
        *contact_writes(directory, at, {contact_id for _, contact_id, _ in awaited}),
        store.add_events(_event_rows(fresh), at, added),
    ]
    if awaited:
        calls.append(store.wake_waiting(awaited, at))
    entries = store.EntryRows()
    for each in fresh:
        matched = matcher.matches(each, directory.known)
        outcomes[each.event_id] = Stored(each.idempotency_key, len(matched))
        for active in matched:
            _add_entry(entries, each, active, uuid7(to_us(at)))
    if entries.ids:
        calls += store.add_entries(entries, at), WAKE_ENGINE
    return calls


def _event_rows(fresh: list[Arrival]) -> store.EventRows:
    events = [each.event for each in fresh]
    who = [event.identifiers for event in events]
    return store.EventRows(
        org_ids=[each.org_id for each in fresh],
        ids=[each.event_id for each in fresh],
        contact_ids=[each.contact_id for each in fresh],
        events=[event.name for event in events],
        occurred_us=[each.occurred_us for each in fresh],
        payloads=[event.payload.decode() for event in events],
        idempotency_keys=[each.idempotency_key for each in fresh],
        wallets=[each.wallet for each in who],
        emails=[each.email for each in fresh],
        external_ids=[each.external_id for each in who],
    )


def _add_entry(rows: store.EntryRows, arrival: Arrival, active: Active, entry_id: str) -> None:
    rows.org_ids.append(arrival.org_id)
    rows.ids.append(entry_id)
    rows.automation_ids.append(active.automation_id)
    rows.versions.append(active.version)
    rows.stints.append(active.stint)
    rows.event_ids.append(arrival.event_id)
    rows.contact_ids.append(arrival.contact_id)
    rows.request_ids.append(arrival.request_id)


async def _dry_run(tx: Transaction, dry: list[Arrival], matcher: Matcher, at: datetime) -> dict[str, Outcome]:
    """Judge dry runs against what the store knows now, the live events of this batch included; keep them apart."""
    directory = await look_up(tx, dry)
    directory.imagine(dry, to_us(at))
    matched = {each.event_id: len(matcher.matches(each, directory.known)) for each in dry}
    first: dict[tuple[int, str], Arrival] = {}
    for each in dry:
        first.setdefault((each.org_id, each.key_digest), each)
    kept = [each for _, each in sorted(first.items())]
    rows = store.DryRunRows(
        org_ids=[each.org_id for each in kept],
        key_digests=[each.key_digest for each in kept],
        ids=[each.event_id for each in kept],
        events=[each.event.name for each in kept],
        contact_ids=[each.contact_id for each in kept],
        occurred_us=[each.occurred_us for each in kept],
        payloads=[each.event.payload.decode() for each in kept],
        idempotency_keys=[each.idempotency_key for each in kept],
        matched=[matched[each.event_id] for each in kept],
    )
    (new,) = await run(tx, store.add_dry_runs(rows, at))
    return {
        each.event_id: DryRun(each.idempotency_key, matched[each.event_id], each.event_id not in new) for each in dry
    }
