"""The transaction of live ingest: one batch of parsed events, written and committed together.

It usually takes two round trips: one claims the idempotency keys and reads what the batch depends on, one writes and
commits. Events of new contacts, or with identifiers that move to another contact, need one or two more. The number of
statements does not grow with the batch.

Locks are taken in one order everywhere (`api.store.locks`): idempotency keys, identifiers, contacts, entries, each
sorted. So batches may wait for each other, but they never deadlock. An event that an entry may wait for is stored under
the lock of its contact; `api.engine.record` explains why no wake-up is lost.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from api.clock import to_us, uuid7
from api.ingest.identity import (
    ContactPlan,
    contact_writes,
    find_all_owners,
    find_leading_owners,
    lock_owners,
    recognise,
    resolve_contacts,
)
from api.ingest.match import ActiveTrigger, Matcher, Triggers
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, Outcome, ParsedEvent
from api.store import events as store
from api.store.database import RefusedDataError, Transaction, transaction_offset
from api.store.query import COMMIT, Call, run
from workbench.language.problem import Problem, Problems

_ATTRIBUTES_TOO_LARGE = (
    Problem("attributes", "the contact would have more than 1,000 attributes, or more than 256 KB of them"),
)


async def store_batch(
    tx: Transaction, events: Sequence[ParsedEvent], triggers: Triggers, at: datetime
) -> list[Outcome]:
    """Store events received at `at` and commit; return the outcome of each, in their order."""
    live = [event for event in events if not event.dry]
    dry_runs = [event for event in events if event.dry]
    offset = await transaction_offset(tx)

    # Claim keys. The same round trip reads the epochs and the owners of the leading identifiers.
    org_ids = list({event.org_id for event in events})
    claimed, orgs, owners = await run(tx, _claim_keys(live, at), store.read_epochs(org_ids), find_leading_owners(live))
    matcher = await triggers.matcher(tx, orgs.epochs)
    contacts = recognise(live, owners)
    # Two events of a batch may have one key, so fewer keys than events means that there are duplicates.
    new = live if claimed == len(live) else await _without_duplicates(tx, live, at)

    # Resolve contacts.
    locked_owners = {}
    if unknown := [event for event in new if not event.contact_id]:
        written = {
            event.contact_id
            for event in new
            if event.contact_id and (event.attributes_changed or matcher.is_awaited(event))
        }
        locked_owners = await lock_owners(tx, unknown, written)
    plan = resolve_contacts(new, locked_owners, to_us(at), contacts)

    # Match.
    matches = {event.event_id: matcher.matches(event, plan.identifiers) for event in new}

    # Write and commit.
    writes = _writes(new, plan, matches, matcher, at, offset) if new else []
    writes += store.note_late_events(((event.org_id, event.body.name) for event in new), at, orgs.closed_until)
    outcomes: dict[str, Outcome] = {
        event.event_id: AcceptedEvent(event.idempotency_key, len(matches[event.event_id])) for event in new
    }
    if dry_runs:  # after the live events are written, so that the dry runs find their contacts
        await run(tx, *writes)
        outcomes |= await _judge_dry_runs(tx, dry_runs, matcher, at)
        writes = []
    await run(tx, *writes, COMMIT)
    return [outcomes.get(event.event_id) or Duplicate(event.idempotency_key) for event in events]


def add_entry(rows: store.EntryRows, event: ParsedEvent, active: ActiveTrigger, entry_id: str) -> None:
    rows.org_ids.append(event.org_id)
    rows.ids.append(entry_id)
    rows.automation_ids.append(active.automation_id)
    rows.versions.append(active.version)
    rows.activations.append(active.activation)
    rows.event_ids.append(event.event_id)
    rows.contact_ids.append(event.contact_id)
    rows.request_ids.append(event.request_id)


def refusal_of(error: RefusedDataError) -> Problems:
    """Return the problems to report for a single event that the database refused."""
    return _ATTRIBUTES_TOO_LARGE if str(error) == store.ATTRIBUTES_TOO_LARGE else (Problem("", "cannot be stored"),)


def _claim_keys(events: Sequence[ParsedEvent], at: datetime) -> Call[int]:
    """Return the call that claims the idempotency keys of events. Its result: the number of keys that were new."""
    claims = _first_by_key(events)
    return store.claim_keys(
        [event.org_id for event in claims],
        [event.key_digest for event in claims],
        [event.event_id for event in claims],
        [event.body_digest for event in claims],
        at,
    )


async def _without_duplicates(tx: Transaction, events: Sequence[ParsedEvent], at: datetime) -> list[ParsedEvent]:
    """Return the events that hold their keys; record the keys of the others that were sent with another body."""
    (holders,) = await run(
        tx, store.find_key_holders([event.org_id for event in events], [event.key_digest for event in events])
    )
    new: list[ParsedEvent] = []
    mismatches: list[tuple[int, str]] = []
    for position, event in enumerate(events):
        holder = holders[position]
        if holder.event_id == event.event_id:
            new.append(event)
        elif holder.body_digest != event.body_digest:
            mismatches.append((event.org_id, holder.event_id))
    if mismatches:
        org_ids, event_ids = zip(*mismatches, strict=True)
        await run(tx, store.add_mismatches(org_ids, [uuid7(to_us(at)) for _ in mismatches], event_ids, at))
    return new


def _writes(
    events: Sequence[ParsedEvent],
    plan: ContactPlan,
    matches: Mapping[str, Sequence[ActiveTrigger]],
    matcher: Matcher,
    at: datetime,
    offset: int,
) -> list[Call[None]]:
    """Return the calls that write new events, their contacts and their entries."""
    awaited = [(event.org_id, event.contact_id, event.body.name) for event in events if matcher.is_awaited(event)]
    writes = contact_writes(plan, at, {contact_id for _, contact_id, _ in awaited})
    bodies = [event.body for event in events]
    rows = store.EventRows(
        org_ids=[event.org_id for event in events],
        ids=[event.event_id for event in events],
        contact_ids=[event.contact_id for event in events],
        events=[body.name for body in bodies],
        occurred_us=[event.occurred_us for event in events],
        payloads=[body.payload.decode() for body in bodies],
        idempotency_keys=[event.idempotency_key for event in events],
        wallets=[body.identifiers.wallet for body in bodies],
        emails=[event.email for event in events],
        external_ids=[body.identifiers.external_id for body in bodies],
    )
    writes.append(store.add_events(rows, at, offset))
    if awaited:
        writes.append(store.wake_waiting_entries(awaited, at))
    entries, at_us = store.EntryRows(), to_us(at)
    for event in events:
        for active in matches[event.event_id]:
            add_entry(entries, event, active, uuid7(at_us))
    if entries.ids:
        writes += store.add_entries(entries, at), store.WAKE_ENGINE
    return writes


async def _judge_dry_runs(
    tx: Transaction, events: Sequence[ParsedEvent], matcher: Matcher, at: datetime
) -> dict[str, Outcome]:
    """Match dry runs, and store them in their own table; return their outcomes by event id."""
    owners = await find_all_owners(tx, events)
    matched: dict[str, int] = {}
    for event in events:
        # Each dry run is resolved alone, and its plan is dropped: it must not see the contacts of another one.
        own = {(event.org_id, key): owners[event.org_id, key] for key in event.keys if (event.org_id, key) in owners}
        plan = resolve_contacts([event], own, to_us(at))
        matched[event.event_id] = len(matcher.matches(event, plan.identifiers))
    kept = _first_by_key(events)
    rows = store.DryRunRows(
        org_ids=[event.org_id for event in kept],
        key_digests=[event.key_digest for event in kept],
        ids=[event.event_id for event in kept],
        events=[event.body.name for event in kept],
        contact_ids=[event.contact_id for event in kept],
        occurred_us=[event.occurred_us for event in kept],
        payloads=[event.body.payload.decode() for event in kept],
        idempotency_keys=[event.idempotency_key for event in kept],
        matched=[matched[event.event_id] for event in kept],
    )
    (new_ids,) = await run(tx, store.add_dry_runs(rows, at))
    return {
        event.event_id: DryRun(event.idempotency_key, matched[event.event_id], event.event_id not in new_ids)
        for event in events
    }


def _first_by_key(events: Sequence[ParsedEvent]) -> list[ParsedEvent]:
    first: dict[tuple[int, str], ParsedEvent] = {}
    for event in events:
        first.setdefault((event.org_id, event.key_digest), event)
    return [first[key] for key in sorted(first)]  # sorted like all locks: claiming a key waits for its other claimant
