"""One micro-batch, one transaction: remember keys, resolve contacts, store events, match, enter.

A handful of statements whatever the size. Locks are taken in the order of everybody (`store.locks`): idempotency keys,
identifiers, contacts, each sorted; so two batches wait for each other and never in a circle. New entries are inserted last,
after the locks of contacts: nobody knows their ids or their events yet, so that insert waits for nobody.
"""

import asyncio
from datetime import datetime

from api.clock import to_us, uuid7
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.ingest.lookup import all_keys, look_up
from api.ingest.matching import Active, Matcher, Triggers
from api.ingest.outcome import DryRun, Duplicate, Outcome, Stored
from api.ingest.writing import claim_keys, write_contacts
from api.store import ingest as store
from api.store.database import Transaction
from api.store.locks import lock_contacts, lock_identifiers
from api.store.triggers import epochs as current_epochs
from api.store.wake import wake_engine


async def store_batch(tx: Transaction, arrivals: list[Arrival], triggers: Triggers, at: datetime) -> dict[str, Outcome]:
    """Store arrivals received at `at`; return the outcome of each by event id. The caller commits."""
    live = [each for each in arrivals if not each.dry]
    dry = [each for each in arrivals if each.dry]
    async with tx.pipeline():  # three statements, one round trip
        asked = (
            asyncio.create_task(claim_keys(tx, live, at)),
            asyncio.create_task(current_epochs(tx, list({each.org_id for each in arrivals}))),
            asyncio.create_task(look_up(tx, live)),
        )
        await asyncio.wait(asked)  # all of them: none may touch the connection after another has failed
        new, epochs, directory = await asyncio.gather(*asked)
    matcher = await triggers.at(tx, epochs)
    outcomes: dict[str, Outcome] = {each.event_id: Duplicate(each.idempotency_key) for each in live}
    fresh = [each for each in live if each.event_id in new]
    await _note_mismatches(tx, [each for each in live if each.event_id not in new], at)
    directory = await _place(tx, fresh, directory, at)
    async with tx.pipeline():
        await write_contacts(tx, directory, at)
        await _store(tx, fresh, at)
        await _enter(tx, fresh, directory, matcher, outcomes, at)
    if dry:
        outcomes |= await _dry_run(tx, dry, matcher, at)
    return outcomes


async def _note_mismatches(tx: Transaction, again: list[Arrival], at: datetime) -> None:
    if not again:
        return
    held = await store.find_remembered(tx, [each.org_id for each in again], [each.key_digest for each in again])
    different = [
        (again[position].org_id, event_id)
        for position, event_id, body in held
        if body.replace("-", "") != again[position].body_digest
    ]
    if different:
        org_ids, event_ids = zip(*different, strict=True)
        await store.add_mismatches(tx, org_ids, [uuid7(to_us(at)) for _ in different], event_ids, at)


async def _place(tx: Transaction, fresh: list[Arrival], directory: Directory, at: datetime) -> Directory:
    """Give every arrival its contact. When that changes who owns what, do it again under locks, on what is true then."""
    directory.place(fresh, to_us(at))
    if not directory.changed:
        return directory
    await lock_identifiers(tx, all_keys(fresh))
    directory = await look_up(tx, fresh)
    if owners := directory.contacts():
        await lock_contacts(tx, owners)
        directory = await look_up(tx, fresh)
    directory.place(fresh, to_us(at))
    return directory


async def _store(tx: Transaction, fresh: list[Arrival], at: datetime) -> None:
    if not fresh:
        return
    rows = store.EventRows()
    for each in fresh:
        who = each.event.identifiers
        rows.org_ids.append(each.org_id)
        rows.ids.append(each.event_id)
        rows.contact_ids.append(each.contact_id)
        rows.events.append(each.event.name)
        rows.occurred_us.append(each.occurred_us)
        rows.payloads.append(each.event.payload.decode())
        rows.idempotency_keys.append(each.idempotency_key)
        rows.wallets.append(who.wallet)
        rows.emails.append(each.email)
        rows.external_ids.append(who.external_id)
    await store.add_events(tx, rows, at)


async def _enter(
    tx: Transaction,
    fresh: list[Arrival],
    directory: Directory,
    matcher: Matcher,
    outcomes: dict[str, Outcome],
    at: datetime,
) -> None:
    rows = store.EntryRows()
    for each in fresh:
        matched = matcher.matches(each, directory.known(each))
        outcomes[each.event_id] = Stored(each.idempotency_key, len(matched))
        for active in matched:
            _entry_row(rows, each, active, uuid7(to_us(at)))
    if rows.ids:
        await store.add_entries(tx, rows, at)
        await wake_engine(tx)


def _entry_row(rows: store.EntryRows, arrival: Arrival, active: Active, entry_id: str) -> None:
    rows.org_ids.append(arrival.org_id)
    rows.ids.append(entry_id)
    rows.automation_ids.append(active.automation_id)
    rows.versions.append(active.version)
    rows.event_ids.append(arrival.event_id)
    rows.contact_ids.append(arrival.contact_id)


async def _dry_run(tx: Transaction, dry: list[Arrival], matcher: Matcher, at: datetime) -> dict[str, Outcome]:
    """Judge dry runs against what the store knows now, the live events of this batch included; keep them apart."""
    directory = await look_up(tx, dry)
    directory.imagine(dry, to_us(at))
    matched = {each.event_id: len(matcher.matches(each, directory.known(each))) for each in dry}
    first: dict[tuple[int, str], Arrival] = {}
    for each in dry:
        first.setdefault((each.org_id, each.key_digest), each)
    rows = store.DryRunRows()
    for _, each in sorted(first.items()):
        rows.org_ids.append(each.org_id)
        rows.key_digests.append(each.key_digest)
        rows.ids.append(each.event_id)
        rows.events.append(each.event.name)
        rows.contact_ids.append(each.contact_id)
        rows.occurred_us.append(each.occurred_us)
        rows.payloads.append(each.event.payload.decode())
        rows.idempotency_keys.append(each.idempotency_key)
        rows.matched.append(matched[each.event_id])
    new = await store.add_dry_runs(tx, rows, at)
    return {
        each.event_id: DryRun(each.idempotency_key, matched[each.event_id], each.event_id not in new) for each in dry
    }
