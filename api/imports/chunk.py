"""Batches of an import: one transaction each, several under way at a time.

The identity rules are those of live ingest; there are no automations, and an event is dated when it occurred. Locks are
taken in the one order of `api.store.locks`.

A transaction has two parts. Before its turn, while the batch ahead is still being stored, it claims its keys by COPY
and stores the events of contacts that are cached, or that seem to be new, under the id that their contact will have. In
its turn, after the batch ahead has committed, it checks these expectations, and stores contacts and all other events.
Keys are claimed in order, so a batch never waits for a key while a batch behind it holds one.

If a key was claimed before, keys are looked up first from then on, so that a file which is stored already costs only
lookups.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.catalog.counts import late_imported_events
from api.clock import to_us
from api.imports.contact_cache import ContactCache
from api.imports.rows import PastEvent, PastEvents
from api.ingest.identity import contact_writes, lock_owners, resolve_contacts
from api.store import copy, imports
from api.store.database import Transaction, transaction_offset
from api.store.events import ContactRows, read_counting
from api.store.query import Call, run
from workbench.language.contact import IdentifierKind

TURN_TIMEOUT_S = 3.0  # wait for the batch ahead; Postgres ends a transaction that is idle for five seconds


class PostponedError(Exception):
    """The batch ahead was not stored, or takes long: this one must be begun again."""


class TooManyLocksError(Exception):
    """A batch would lock more than a transaction may: other processes changed contacts that were cached."""


class ContactChangedError(Exception):
    """An event that was stored before its turn turned out to belong to another contact."""


class PipelineSlot:
    """The place of a batch in line behind another batch, if there is one.

    `task` stores the batch; `claimed` is set once the batch has claimed its keys, or has ended without that.
    """

    def __init__(
        self, ahead: "PipelineSlot | None", store: Callable[["PipelineSlot"], Coroutine[Any, Any, None]]
    ) -> None:
        self.claimed = asyncio.Event()
        self._ahead = ahead
        self.task = asyncio.create_task(store(self))
        self.task.add_done_callback(lambda _: self.claimed.set())

    async def wait_to_claim(self) -> None:
        """Wait until the batch ahead has claimed its keys."""
        if self._ahead is not None:
            await self._ahead.claimed.wait()

    async def wait_for_turn(self) -> None:
        """Wait until the batch ahead is stored; raise PostponedError if it is not."""
        ahead, self._ahead = self._ahead, None  # dropped, or every slot would keep all slots before it alive
        if ahead is not None:
            await asyncio.wait([ahead.task], timeout=TURN_TIMEOUT_S)
            if not ahead.task.done() or ahead.task.cancelled() or ahead.task.exception() is not None:
                raise PostponedError


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class ImportTarget(msgspec.Struct):
    """The organization that an import stores into.

    `max_locks`: of identifiers, and again of contacts, for one batch. `source`: the id of the import, under which it
    notes late events. `check_keys`: look up keys before they are claimed. Without that, a batch fails with
    ConflictError if one of its keys is taken.
    """

    org_id: int
    cache: ContactCache
    max_locks: int
    source: str | None = None
    check_keys: bool = False


class ClaimedEvents(msgspec.Struct, frozen=True):
    """The events with keys that a transaction has claimed, and the tables to copy them to (None: no events)."""

    events: PastEvents
    target: copy.CopyTarget | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """How many events of a batch are done, and how many of them were stored or were duplicates.

    `new`: the events of new contacts. `writes`: the calls still to be run, with the commit.
    """

    taken: int
    stored: int
    duplicates: int
    new: Sequence[PastEvent] = ()
    writes: Sequence[Call[None]] = ()


def count_lockable(target: ImportTarget, events: PastEvents, start: int, limit: int) -> int:
    """Return how many of the events from `start` on one transaction can take: at most `limit`, at least one.

    An unknown identity needs locks for all its identifiers; an event with attributes needs one for its contact.
    """
    identities, attributes = events.identities[start : start + limit], events.attributes[start : start + limit]
    unknown = [identity for identity in identities if not identity.contact_id]
    if len(IdentifierKind) * len(unknown) + sum(map(bool, attributes)) <= target.max_locks:
        return len(identities)
    locks: set[object] = set()
    for count, (identity, own) in enumerate(zip(identities, attributes, strict=True)):
        if not identity.contact_id:
            locks.update(identity.keys)
        elif own:
            locks.add(identity.contact_id)
        if count and len(locks) > target.max_locks:
            return count
    return len(identities)


async def claim_keys(tx: Transaction, target: ImportTarget, batch: PastEvents, at: datetime) -> ClaimedEvents:
    """Claim the idempotency keys that are new; raise ConflictError (see `ImportTarget.check_keys`)."""
    new = batch.at(await _find_new(tx, target, batch))
    if not new:
        return ClaimedEvents(new)
    await copy.add_keys(tx, sorted(new.key_rows), at)  # sorted, as in live ingest: the two cannot deadlock
    number, tables = await run(
        tx, imports.transaction_number(await transaction_offset(tx)), copy.find_tables(new.occurred_at_us)
    )
    return ClaimedEvents(new, copy.CopyTarget(tables, number))


async def store_early(tx: Transaction, target: ImportTarget, claimed: ClaimedEvents) -> list[str]:
    """Store the claimed events with an expected contact; return the expected contact of every event, or ""."""
    expected = target.cache.expected(claimed.events.identities)
    await _copy(tx, claimed, expected, [position for position, contact_id in enumerate(expected) if contact_id])
    return expected


async def store_in_turn(
    tx: Transaction,
    target: ImportTarget,
    batch: PastEvents,
    claimed: ClaimedEvents,
    expected: Sequence[str],
    at: datetime,
) -> BatchResult:
    """Store the claimed events that were not stored early, except for `BatchResult.writes`.

    Raises TooManyLocksError, and ContactChangedError if an event that was stored early belongs to another contact.
    """
    events = claimed.events
    if claimed.target is None:
        return BatchResult(len(batch), 0, len(batch))

    # Transactions of other processes, and the time before which events are late. Read only after the keys are claimed:
    # the claim is what the counting job waits for.
    offset = await transaction_offset(tx)
    snapshot, counted = await run(tx, imports.take_snapshot(), read_counting(target.org_id))
    target.cache.begin(claimed.target.number - offset, snapshot)

    resolution = await target.cache.recognise(tx, events)
    unknown = [event for event in resolution.events.values() if not event.contact_id]
    changed_ids = {
        event.contact_id for event in resolution.events.values() if event.contact_id and event.attributes_changed
    }
    lock_count = len({key for event in unknown for key in event.keys}) + len(changed_ids)
    if len(events) > 1 and lock_count > target.max_locks * 4 // 3:
        raise TooManyLocksError
    owners = {}
    if unknown:
        owners = await lock_owners(tx, unknown, changed_ids)
        resolution.include(events, {owner.contact_id for owner in owners.values()})
    plan = resolve_contacts(list(resolution.events.values()), owners, to_us(at))
    resolution.take_over()
    target.cache.note_written(plan.changed_contacts())

    remaining = [position for position, contact_id in enumerate(expected) if not contact_id]
    stored_under = list(expected)
    for position in remaining:
        stored_under[position] = resolution.contact_ids[position]
    if stored_under != resolution.contact_ids:
        # The organization knows contacts of this file, so expectations would fail again and cost a rollback each.
        target.cache.expects_new = False
        raise ContactChangedError
    await _copy(tx, claimed, resolution.contact_ids, remaining)

    def add_contacts(rows: ContactRows, at: datetime) -> Call[None]:
        first_us: dict[str, int] = {}  # a contact is dated by the earliest of its events
        for event in resolution.events.values():
            first_us[event.contact_id] = min(event.occurred_us, first_us.get(event.contact_id, event.occurred_us))
        return imports.add_past_contacts(rows, first_us, at)

    writes = contact_writes(plan, at, add_contacts=add_contacts)
    dated = zip(events.names, events.occurred_at_us, strict=True)
    writes += late_imported_events((target.org_id, target.source), dated, counted, at)
    new = [event for event in resolution.events.values() if plan.creates_owner_of(event)]
    return BatchResult(len(batch), len(events), len(batch) - len(events), new, writes)


async def _find_new(tx: Transaction, target: ImportTarget, batch: PastEvents) -> Sequence[int]:
    """Return the positions of events with a new key; of several with the same key, the first."""
    if not target.check_keys and len(set(batch.key_digests)) == len(batch):
        return range(len(batch))
    first: dict[bytes, int] = {}
    for position, digest in enumerate(batch.key_digests):
        first.setdefault(digest, position)
    if target.check_keys:
        digests = sorted(first)
        (claimed,) = await run(tx, imports.find_claimed_keys(target.org_id, [digest.hex() for digest in digests]))
        target.check_keys = bool(claimed)
        for position in claimed:
            del first[digests[position]]
    return list(first.values())


async def _copy(tx: Transaction, claimed: ClaimedEvents, contact_ids: Sequence[str], positions: Sequence[int]) -> None:
    events = claimed.events
    if positions and claimed.target is not None:
        parts = events.heads, events.payloads, events.tails, [identity.fields for identity in events.identities]
        rows = copy.PastRows(parts, contact_ids, events.occurred_at_us)
        await copy.add_past_events(tx, rows, positions, claimed.target)
