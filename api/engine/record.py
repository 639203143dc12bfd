"""Record: write decisions in one transaction: states, steps, and the effects that live in the database.

Nothing is written if a lease was lost (the update matches the lease token) or if a decision was made on stale facts.
Decisions are made without locks, so three races are closed here:

- An entry that looks back at messages and entries of its contact, waits for an event, or gives up waiting, is recorded
  under the advisory lock of its contact, and the facts that it looked at are read again under that lock.
- Ingest stores an event that an entry may wait for under the same lock. The event is committed either before, and seen
  by the second read, or after, and then ingest finds the entry waiting and wakes it: no wake-up is lost. An entry that
  starts to wait had no reason to look at events before; one that arrived since its decision makes it due at once.
- An entry is paused only while its automation is share-locked as paused. A resume commits either before, and is seen
  here, or after, and then finds the paused entry.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from api.crypto import Keyring
from api.engine.facts import BatchFacts, read_watched
from api.engine.outbox import OutgoingMessage, store_outgoing
from api.engine.progress import EntryProgress, attribute_changes, tag_changes
from api.process import Tally
from api.store import entries as store
from api.store.database import Transaction
from api.store.events import merge_attributes
from api.store.locks import hold_contacts
from api.store.messages import abandon_outgoing, add_skipped_messages, announce_messages
from api.store.query import COMMIT, Call, run
from workbench.language.run import TERMINAL, State

EFFECTS_PER_LINE = 16  # about 4,000 bytes
_ENDED_EARLY = frozenset({State.DEAD, State.CANCELLED, State.EXITED})

_log = logging.getLogger("workbench.engine")


class Recorded(msgspec.Struct, frozen=True):
    """The batch is written. `outgoing`: the messages to deliver before their entries can continue."""

    outgoing: tuple[OutgoingMessage, ...] = ()


class StaleFacts(msgspec.Struct, frozen=True):
    """A decision was made on facts that have changed since; the transaction is rolled back."""


class LostLeases(msgspec.Struct, frozen=True):
    """Other engines have claimed these entries; the transaction is rolled back."""

    entry_ids: frozenset[str]


class CancelledEntries(msgspec.Struct, frozen=True):
    """These entries, still under our lease, were cancelled with an outcome; the transaction is rolled back."""

    outcomes: dict[str, str]


RecordResult: TypeAlias = Recorded | StaleFacts | LostLeases | CancelledEntries


async def record(
    tx: Transaction, org_id: int, keyring: Keyring, batch: list[EntryProgress], facts: BatchFacts
) -> RecordResult:
    """Write a batch of one organization, decided on `facts`.

    Commits in the last round trip, unless messages are to be delivered: then the caller's transaction commits.
    """
    at = facts.decide_at

    # 1. The automations of entries that are being paused are still paused, and stay so until the commit.
    if paused_ids := {progress.claim.automation_id for progress in batch if progress.run.state is State.PAUSED}:
        (paused,) = await run(tx, store.count_paused(org_id, sorted(paused_ids)))
        if paused < len(paused_ids):
            await tx.rollback()
            return StaleFacts()

    # 2. Watched facts are still the same, under the locks of their contacts. Contacts are locked before entries, here
    # as everywhere, and all of them in one statement, which sorts them: two batches cannot deadlock.
    watching = [progress for progress in batch if progress.awaits or facts.requests[progress.claim.entry_id].is_watched]
    attributes, tags = attribute_changes(batch), tag_changes(batch)
    contact_ids = {progress.claim.contact_id for progress in watching}
    contact_ids.update(attributes, (change.contact_id for change in tags))
    if watching:
        await run(tx, hold_contacts(contact_ids))
        entry_ids = [progress.claim.entry_id for progress in watching]
        requests = [facts.requests[entry_id] for entry_id in entry_ids]
        if await read_watched(tx, org_id, requests, facts.read_at) != facts.watched.of(entry_ids):
            await tx.rollback()
            return StaleFacts()

    # 3. States and in-app messages. An awaited event that arrived since the decision to wait makes its entry due at
    # once.
    arrived: Mapping[str, object] = {}
    if waits := [(progress.claim, progress.awaits, at) for progress in batch if progress.awaits]:
        (arrived,) = await run(tx, store.read_later_events(org_id, waits))
    updates = [
        replace(progress.update, due_at=at) if progress.claim.entry_id in arrived else progress.update
        for progress in batch
    ]
    messages = [message for progress in batch for message in progress.messages]
    _, updated_ids, new_message_ids = await run(
        tx,
        hold_contacts(contact_ids),
        store.record_entries(org_id, updates, at),
        store.add_messages(org_id, messages, at),
    )

    # 4. Entries that were not updated are lost, or were cancelled while they were claimed. Lost ones are reported
    # first: the caller decides the others again and calls once more.
    if missing := [progress.claim for progress in batch if progress.claim.entry_id not in updated_ids]:
        outcomes = {claim.entry_id: (await run(tx, store.find_cancellation(org_id, claim)))[0] for claim in missing}
        await tx.rollback()
        if lost_ids := frozenset(entry_id for entry_id, outcome in outcomes.items() if outcome is None):
            return LostLeases(lost_ids)
        return CancelledEntries({entry_id: outcome for entry_id, outcome in outcomes.items() if outcome is not None})

    # 5. Everything else, in one round trip.
    calls: list[Call[Any]] = []
    if attributes:
        texts = list(attributes.values())
        calls.append(merge_attributes([org_id] * len(texts), list(attributes), texts, at))
    if tags:
        calls.append(store.change_tags(org_id, tags, at))
    calls.append(
        store.add_steps(org_id, [step for progress in batch for step in progress.steps_to_log(new_message_ids)], at)
    )
    if wallets := {message.wallet for message in messages if message.id in new_message_ids}:
        calls.append(announce_messages(org_id, wallets))
    # An entry with a node may have a queued message from an earlier attempt, which is not sent any more.
    if abandoned_ids := [
        progress.claim.entry_id for progress in batch if progress.claim.node_id and progress.run.state in _ENDED_EARLY
    ]:
        calls.append(abandon_outgoing(org_id, abandoned_ids, at))
    if skipped := [row for progress in batch for row in progress.skipped]:
        calls.append(add_skipped_messages(org_id, skipped, at))
    if not any(progress.pending for progress in batch):
        calls.append(COMMIT)
    await run(tx, *calls)

    # 6. Emails and webhooks are stored before anything is sent.
    return Recorded(tuple(await store_outgoing(tx, org_id, keyring, batch, at)))


async def record_delivery(
    tx: Transaction, org_id: int, progress: EntryProgress, message_calls: Sequence[Call[None]], at: datetime
) -> EntryProgress | LostLeases:
    """Write the progress of an entry after a delivery attempt, with the calls that update its message.

    Returns the progress as written: an entry that was cancelled during the delivery goes no further.
    """
    claim = progress.claim
    for step in progress.steps:
        (is_logged,) = await run(tx, store.has_step(org_id, step))
        if is_logged:
            # Already written by a transaction whose commit was not acknowledged.
            return progress
    (cancelled_outcome,) = await run(tx, store.find_cancellation(org_id, claim))
    is_cancelled = cancelled_outcome is not None and progress.run.state not in TERMINAL
    if is_cancelled:
        running = replace(progress.run, state=State.RUNNING)
        cancelled = running.to(State.CANCELLED, outcome=cancelled_outcome, error=None, due_at=None)
        progress = replace(progress, run=cancelled, awaits=frozenset())
    # `happened`: the message has left, so its step is written even if the entry has been cancelled.
    (updated_ids,) = await run(tx, store.record_entries(org_id, [progress.update], at, happened=True))
    if not updated_ids:
        await tx.rollback()
        return LostLeases(frozenset({claim.entry_id}))
    abandon = [abandon_outgoing(org_id, [claim.entry_id], at)] if is_cancelled else []
    await run(tx, *message_calls, store.add_steps(org_id, progress.steps, at), *abandon)
    return progress


class EngineCounts:
    """Counts of what one engine process recorded, for its metrics and its log."""

    def __init__(self) -> None:
        self.steps = Tally("kind", "outcome")
        self.entries = Tally("state")
        self.lost = 0
        self.rescued = 0

    def add(self, org_id: int, batch: Iterable[EntryProgress]) -> None:
        """Count a recorded batch, and log its messages with the request that started their entries."""
        effects: list[dict[str, str | None]] = []
        for progress in batch:
            for step in progress.steps:
                self.steps.add(step.kind, step.outcome)
                if step.kind.startswith("send_"):
                    effects.append(
                        {
                            "request_id": progress.claim.request_id,
                            "entry_id": progress.claim.entry_id,
                            "event_id": progress.claim.event_id,
                            "node_id": step.node_id,
                            "kind": step.kind,
                            "outcome": step.outcome,
                        }
                    )
            if progress.run.state is not State.RUNNING:
                self.entries.add(progress.run.state)
        # One line for many effects: a line each takes as long as the in-app message itself.
        for start in range(0, len(effects), EFFECTS_PER_LINE):
            _log.info("effects", extra={"org_id": org_id, "effects": effects[start : start + EFFECTS_PER_LINE]})

    def add_lost(self, org_id: int, entries: int) -> None:
        self.lost += entries
        _log.warning("lease_lost", extra={"org_id": org_id, "entries": entries})
