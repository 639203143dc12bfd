"""The transaction of live ingest: one batch of parsed events, written and committed together.

It usually takes two round trips: one claims the idempotency keys and reads what the batch depends on, one writes and
commits. Events of new contacts, or with identifiers that move to another contact, need one or two more. The number of
statements does not grow with the batch.

Locks are taken in one order everywhere (`api.store.locks`): idempotency keys, identifiers, contacts, entries, each
sorted. So batches may wait for each other, but they never deadlock. An event that an entry may wait for is stored under
the lock of its contact; `api.engine.record` explains why no wake-up is lost.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from api.clock import to_us, uuid7
from api.ingest.identity import (
    ContactPlan,
    PastChanges,
    contact_writes,
    date_changes,
    find_all_owners,
    fit_plan,
    lock_owners,
    recognise,
    resolve_contacts,
    sole_changes,
)
from api.ingest.match import ActiveTrigger, Matcher, Triggers, awaited_attributes
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, IdentifiedEvent, Outcome, ParsedEvent
from api.store import events as store
from api.store.database import Transaction, transaction_offset
from api.store.events import CountedUntil, OrgEpochs, Owner
from api.store.query import COMMIT, Call, run
from workbench.language.problem import Problem, Problems

_KEY = attrgetter("org_id", "key_digest")
_EVENT_ID = attrgetter("event_id")

CANNOT_BE_STORED = (Problem("", "cannot be stored"),)  # a single event that the database refused


async def store_batch(
    tx: Transaction, events: Sequence[ParsedEvent], triggers: Triggers, at: datetime, *, fit: bool = False
) -> list[Outcome]:
    """Store parsed events received at `at` and commit; return the outcome of each, in their order.

    Raises RefusedDataError(ATTRIBUTES_TOO_LARGE) if a contact has no room for the attributes of its events; with `fit`
    they are left out.
    """
    # In the order of the timeline: requests that were read at the same time may be queued in another order.
    live = sorted([event for event in events if not event.dry], key=_EVENT_ID)
    dry_runs = [event for event in events if event.dry]
    offset = await transaction_offset(tx)

    # Claim keys.
    batch = await _claim_keys(tx, prepare(live, at), list({event.org_id for event in events}), at)
    matcher = await triggers.matcher(tx, batch.orgs.epochs)

    # Resolve contacts.
    recognised = zip(batch.events, batch.recognised, strict=True)
    awaited = [matcher.awaited_names(event, owner) for event, owner in recognised]
    plan, left_out = await _plan_contacts(tx, batch, awaited, at, fit)

    # Match.
    placed = zip(batch.events, plan.contact_ids, strict=True)
    matches = [matcher.matches(event, contact_id, plan.identifiers[contact_id], at) for event, contact_id in placed]

    # Write.
    writes = _writes(batch, plan, awaited, matches, at, offset)
    if batch.mismatches:
        org_ids, event_ids = zip(*batch.mismatches, strict=True)
        writes.append(store.add_mismatches(org_ids, [uuid7(to_us(at)) for _ in org_ids], event_ids, at))
    named = ((event.org_id, event.body.name) for event in batch.events)
    writes += store.note_late_events(named, at, batch.orgs.counting)
    outcomes: dict[str, Outcome] = {
        event.event_id: AcceptedEvent(
            event.idempotency_key, len(active), event.body.warnings + left_out.get(event.event_id, ())
        )
        for event, active in zip(batch.events, matches, strict=True)
    }
    if dry_runs:  # after the live events are written, so that the dry runs find their contacts
        await run(tx, *writes)
        outcomes |= await _judge_dry_runs(tx, dry_runs, matcher, at)
        writes = []

    # Commit.
    await run(tx, *writes, COMMIT)
    return [outcomes.get(event.event_id) or Duplicate(event.idempotency_key, event.body.warnings) for event in events]


class PreparedEvents(msgspec.Struct, frozen=True):
    """Events and those calls for them that need nothing from the database; `add` lacks the contacts and times."""

    events: Sequence[ParsedEvent]
    claim: Call[int]
    find_owners: Call[list[Owner]]
    add: Call[None]


def prepare(events: Sequence[ParsedEvent], at: datetime) -> PreparedEvents:
    """Prepare events received at `at`; an import does it while it stores the batch before."""
    claims = sorted(events, key=_KEY)  # sorted like all locks: a claim waits for another claim of the same key
    claim = store.claim_keys(
        [event.org_id for event in claims],
        [event.key_digest for event in claims],
        [event.event_id for event in claims],
        [event.body_digest for event in claims],
        at,
    )
    org_ids = [event.org_id for event in events]
    bodies = [event.body for event in events]
    identifiers = [body.identifiers for body in bodies]
    leading = [event.keys[0] for event in events]
    find_owners = store.find_owners(
        org_ids, [key[0] for key in leading], [key[1] for key in leading], [event.attributes for event in events]
    )
    add = store.add_events(
        org_ids=org_ids,
        ids=[event.event_id for event in events],
        contact_ids=[],
        events=[body.name for body in bodies],
        occurred_us=[event.occurred_us for event in events],
        payloads=[body.payload.decode() for body in bodies],
        idempotency_keys=[event.idempotency_key for event in events],
        wallets=[sent.wallet for sent in identifiers],
        emails=[event.emails[0] if event.emails else None for event in events],
        external_ids=[sent.external_id for sent in identifiers],
        created_at=None,
        added=0,
    )
    return PreparedEvents(events, claim, find_owners, add)


class PastBatch(msgspec.Struct, frozen=True):
    """The new events of a batch of history, and the calls that write them: run these calls with the commit.

    `counting`: up to which moments the organization's events are counted. `warnings`: what was left out, by event id.
    """

    events: Sequence[ParsedEvent]
    writes: list[Call[None]]
    counting: CountedUntil | None
    warnings: dict[str, Problems]


async def store_history(
    tx: Transaction, org_id: int, prepared: "PreparedEvents", at: datetime, *, fit: bool = False
) -> PastBatch:
    """Store past events of an import at `at`, all but `PastBatch.writes`; `fit` as in `store_batch`.

    They start no automation, and their `created_at` is the time when they occurred.
    """
    offset = await transaction_offset(tx)
    batch = await _claim_keys(tx, prepared, [org_id], at)
    can_be_awaited = await store.find_awaited_events(tx, org_id)
    recognised = zip(batch.events, batch.recognised, strict=True)
    awaited = [awaited_attributes(event, owner, can_be_awaited) for event, owner in recognised]
    plan, left_out = await _plan_contacts(tx, batch, awaited, at, fit)
    waking = {contact_id for contact_id, wakes in zip(plan.contact_ids, awaited, strict=True) if wakes}
    past = await date_changes(tx, plan, {event.event_id: event.occurred_us for event in batch.events}, at, waking)
    writes = _writes(batch, plan, awaited, [()] * len(batch.events), at, offset, past)
    warnings = {
        event.event_id: problems
        for event in batch.events
        if (problems := event.body.warnings + left_out.get(event.event_id, ()))
    }
    return PastBatch(batch.events, writes, batch.orgs.counting.get(org_id), warnings)


def entry_rows(starts: Sequence[tuple[IdentifiedEvent, str, ActiveTrigger]], at_us: int) -> list[tuple[Any, ...]]:
    """Return new entries as rows of the columns of `store.add_entries`; `starts`: their event, contact and trigger.

    Their ids are in the order of `starts`: events in order, and older automations first for each event.
    """
    ids = sorted([uuid7(at_us) for _ in starts])
    rows = []
    for entry_id, (event, contact_id, active) in zip(ids, starts, strict=True):
        automation = active.automation_id, active.version, active.activation
        rows.append((event.org_id, entry_id, *automation, event.event_id, contact_id, event.request_id))
    return rows


class _ClaimedBatch(msgspec.Struct, frozen=True):
    """The events of a batch whose idempotency keys are claimed, and what the same round trip has read.

    `add`: stores these events. `recognised`: the contact of each event whose identifiers are exactly the stored ones of
    that contact.
    `mismatches`: (organization, stored event) where an event of the batch has the same key but another body.
    """

    events: Sequence[ParsedEvent]
    add: Call[None]
    recognised: Sequence[Owner | None]
    mismatches: list[tuple[int, str]]
    orgs: OrgEpochs


async def _claim_keys(tx: Transaction, prepared: PreparedEvents, org_ids: Sequence[int], at: datetime) -> _ClaimedBatch:
    """Claim the idempotency keys of events, and find out which events were stored before."""
    # One round trip, the claim first: by its lock, the job that counts events finds the transactions that read an older
    # `closed_until`.
    claimed, orgs, owners = await run(tx, prepared.claim, store.read_epochs(org_ids), prepared.find_owners)
    events = prepared.events
    recognised = recognise(events, owners)
    if claimed == len(events):  # two events of a batch may have one key, so duplicates always lower this number
        return _ClaimedBatch(events, prepared.add, recognised, [], orgs)
    (holders,) = await run(
        tx, store.find_key_holders([event.org_id for event in events], [event.key_digest for event in events])
    )
    new, mismatches = list[int](), list[tuple[int, str]]()
    for position, event in enumerate(events):
        event_id, body_digest = holders[position]
        if event_id == event.event_id:
            new.append(position)
        elif body_digest != event.body_digest:
            mismatches.append((event.org_id, event_id))
    events = [events[position] for position in new]
    return _ClaimedBatch(events, prepare(events, at).add, [recognised[position] for position in new], mismatches, orgs)


async def _plan_contacts(
    tx: Transaction, batch: _ClaimedBatch, awaited: Sequence[Collection[str]], at: datetime, fit: bool
) -> tuple[ContactPlan, dict[str, Problems]]:
    """Lock what the events of unknown contacts may change, and resolve the contacts of all events.

    With `fit`, also return the attributes that were left out, by event id.
    """
    locked_owners = {}
    if None in batch.recognised:
        recognised = zip(batch.recognised, awaited, strict=True)
        written = {owner.contact_id for owner, wakes in recognised if owner and (wakes or not owner.has_attributes)}
        locked_owners = await lock_owners(tx, batch.events, batch.recognised, written)
    at_us = to_us(at)
    new_ids = [uuid7(at_us) for owner in batch.recognised if owner is None]
    plan = resolve_contacts(batch.events, batch.recognised, locked_owners, new_ids)
    if not fit:
        return plan, {}
    waking = {contact_id for contact_id, wakes in zip(plan.contact_ids, awaited, strict=True) if wakes}
    return plan, await fit_plan(tx, plan, batch.events, waking)


def _writes(
    batch: _ClaimedBatch,
    plan: ContactPlan,
    awaited: Iterable[Collection[str]],
    matches: Sequence[Sequence[ActiveTrigger]],
    at: datetime,
    offset: int,
    past: PastChanges | None = None,
) -> list[Call[None]]:
    """Return the calls that write new events, their contacts and their entries. `past`: of an import."""
    if not batch.events:
        return []
    placed = list(zip(batch.events, plan.contact_ids, strict=True))
    waking = [
        (event.org_id, contact_id, name, at)
        for (event, contact_id), names in zip(placed, awaited, strict=True)
        for name in names
    ]
    created_us: dict[str, int] = {}
    if past is not None:  # a contact is as old as the earliest of its events
        new_contacts = {contact_id for _, contact_id in plan.created}
        for event, contact_id in placed:
            if contact_id in new_contacts:
                created_us[contact_id] = min(event.occurred_us, created_us.get(contact_id, event.occurred_us))
    sole = sole_changes(plan) if past is None and plan.attribute_changes else {}
    writes = contact_writes(plan, at, offset, {contact_id for _, contact_id, *_ in waking}, created_us, past, sole)
    created_at = at if past is None else None
    add = batch.add.replace(contact_ids=plan.contact_ids, created_at=created_at, added=offset)
    if sole:
        texts = [""] * len(batch.events)
        for change in sole.values():
            texts[change.position] = change.text
        add = store.with_attributes(add, texts)
    writes.append(add)
    if waking:
        writes.append(store.wake_waiting_entries(waking, at))
    starts = [
        (event, contact_id, active)
        for (event, contact_id), active_triggers in zip(placed, matches, strict=True)
        for active in active_triggers
    ]
    if starts:
        entries = zip(*entry_rows(starts, to_us(at)), strict=True)
        writes += store.add_entries(at, *entries), store.wake_engine()
    return writes


async def _judge_dry_runs(
    tx: Transaction, events: Sequence[ParsedEvent], matcher: Matcher, at: datetime
) -> dict[str, Outcome]:
    """Match dry runs, and store them in their own table; return their outcomes by event id."""
    owners = await find_all_owners(tx, events)
    contact_ids: dict[str, str] = {}
    matched: dict[str, int] = {}
    for event in events:
        # Each dry run is resolved alone, and its plan is dropped: it must not see the contacts of another one.
        own = {(event.org_id, key): owners[event.org_id, key] for key in event.keys if (event.org_id, key) in owners}
        plan = resolve_contacts([event], [None], own, [uuid7(to_us(at))])
        (contact_id,) = plan.contact_ids
        contact_ids[event.event_id] = contact_id
        matched[event.event_id] = len(matcher.matches(event, contact_id, plan.identifiers[contact_id], at))
    kept = sorted(events, key=_KEY)
    add_dry_runs = store.add_dry_runs(
        org_ids=[event.org_id for event in kept],
        key_digests=[event.key_digest for event in kept],
        ids=[event.event_id for event in kept],
        events=[event.body.name for event in kept],
        contact_ids=[contact_ids[event.event_id] for event in kept],
        occurred_us=[event.occurred_us for event in kept],
        payloads=[event.body.payload.decode() for event in kept],
        idempotency_keys=[event.idempotency_key for event in kept],
        matched=[matched[event.event_id] for event in kept],
        created_at=at,
    )
    (new_ids,) = await run(tx, add_dry_runs)
    return {
        event.event_id: DryRun(
            event.idempotency_key, matched[event.event_id], event.event_id not in new_ids, event.body.warnings
        )
        for event in events
    }
