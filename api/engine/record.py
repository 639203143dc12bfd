"""Recording: decisions are written in one transaction, with states, steps, and the effects that are rows.

Nothing is written if a lease was lost (the update matches the lease token) or if a decision was made on stale facts.
Decisions are made without locks, so four races are closed here:

- An entry that looks back at messages and entries of its contact, waits for an event, or gives up waiting, is recorded
  under the advisory lock of its contact, and the facts that it looked at are read again under that lock.
- Ingest stores an event that an entry may wait for under the same lock. If the event is committed before the second
  read, that read sees it; if after, ingest finds the entry waiting and wakes it: no wake-up is lost. An entry did
  not look at events before it began to wait, so an event that arrived since its decision makes it due at once. An
  attribute that an entry follows is changed under the same lock, too, by ingest or by another entry, which wakes it.
- The next entry of a contact is claimed only after this one has stopped running. Under the lock of the contact's turns,
  a claim looks at the entries of the contact and puts back all but the first. A claim before this transaction puts
  entries back, and they are released here; a claim after it sees that this entry has stopped.
- A step is recorded only while its automation is not paused. A pause waits for the transactions that share the lock of
  steps, and keeps new ones out until it commits: from then on no step takes effect.
- An entry is paused only while its automation is share-locked as paused. A resume that commits before is seen here; a
  resume that commits after finds the paused entry.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from api.channels.outgoing import OUTGOING
from api.crypto import INDEX, Keyring, OrgKeys
from api.engine.facts import BatchFacts, read_collecting, read_watched
from api.engine.progress import EntryProgress, PendingDelivery, attribute_changes, entry_joins, new_message, tag_changes
from api.process import Tally
from api.store import entries as store
from api.store.changes import note_attributes, note_tags
from api.store.database import Transaction, transaction_offset
from api.store.events import EventRow, merge_attributes, wake_waiting_entries
from api.store.locks import hold_contacts, hold_turns, share_steps
from api.store.messages import (
    StoredMessage,
    abandon_outgoing,
    add_inapp_messages,
    add_outgoing,
    add_skipped_messages,
    announce_messages,
    claim_outgoing,
)
from api.store.query import COMMIT, Call, run
from workbench.language.channel import CHANNELS
from workbench.language.codec import encode
from workbench.language.event import attribute_key
from workbench.language.run import TERMINAL, EntryJoined, State

EFFECTS_PER_LINE = 16  # about 4,000 bytes
_ENDED_EARLY = frozenset({State.DEAD, State.CANCELLED, State.EXITED})

_log = logging.getLogger("workbench.engine")


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to deliver before its entry can continue.

    `stored`: the message as it was stored first, or None if it was sent before. `closed`: its address accepts no more
    messages. `secrets`: the secrets to sign it with, newest first.
    """

    progress: EntryProgress
    pending: PendingDelivery
    stored: StoredMessage | None
    closed: bool
    secrets: tuple[str, ...]


class RecordedBatch(msgspec.Struct, frozen=True):
    """The batch is written.

    `outgoing`: the messages to deliver before their entries can continue. `released`: other entries of these contacts
    are due, which were put back until now.
    """

    outgoing: tuple[OutgoingMessage, ...] = ()
    released: bool = False


class StaleFacts(msgspec.Struct, frozen=True):
    """A decision was made on facts that have changed since; the transaction is rolled back."""


class LostLeases(msgspec.Struct, frozen=True):
    """Other engines have claimed these entries; the transaction is rolled back."""

    entry_ids: frozenset[str]


class CancelledEntries(msgspec.Struct, frozen=True):
    """These entries, still under our lease, were cancelled with an outcome; the transaction is rolled back."""

    outcomes: dict[str, str]


RecordResult: TypeAlias = RecordedBatch | StaleFacts | LostLeases | CancelledEntries


async def record(
    tx: Transaction, org_id: int, keyring: Keyring, batch: list[EntryProgress], facts: BatchFacts
) -> RecordResult:
    """Write a batch of one organization, decided on `facts`.

    Commits in the last round trip, unless messages are to be delivered: then the caller's transaction commits.
    """
    at = facts.read_at

    attributes, tags, joins = attribute_changes(batch), tag_changes(batch), entry_joins(batch)
    watching = [progress for progress in batch if progress.awaits or facts.requests[progress.claim.entry_id].is_watched]
    contact_ids = {progress.claim.contact_id for progress in watching}
    contact_ids.update(attributes, (change.contact_id for change in tags))
    contact_ids.update(progress.claim.contact_id for progress, _ in joins)
    stopped_ids = {progress.claim.contact_id for progress in batch if progress.pending is None}
    if await _have_facts_changed(tx, org_id, batch, facts, watching, joins, contact_ids):
        await tx.rollback()
        return StaleFacts()

    # States and in-app messages. An awaited event that is later than the decision to wait makes its entry due at the
    # moment of that event.
    arrived: Mapping[str, Sequence[EventRow]] = {}
    if waits := [progress for progress in batch if progress.awaits]:
        claims, names = [progress.claim for progress in waits], [store.joined_names(wait.awaits) for wait in waits]
        after, after_ids, until = zip(*map(_unseen_period, waits), strict=True)
        (arrived,) = await run(tx, store.read_later_events(org_id, claims, names, after, after_ids, until))
    updates = [
        replace(progress.update, due_at=arrived[progress.claim.entry_id][0].created_at)
        if progress.claim.entry_id in arrived
        else progress.update
        for progress in batch
    ]
    messages = [message for progress in batch for message in progress.messages]
    _, _, updated_ids, new_message_ids = await run(
        tx,
        hold_contacts(contact_ids),
        hold_turns(stopped_ids),
        store.record_entries(org_id, updates, at),
        add_inapp_messages(org_id, messages, at),
    )

    # Entries that were not updated are lost, or were cancelled while they were claimed. Lost entries are reported
    # first: the caller decides the other entries again and calls this function once more.
    if missing := [progress.claim for progress in batch if progress.claim.entry_id not in updated_ids]:
        outcomes = {claim.entry_id: (await run(tx, store.find_cancellation(org_id, claim)))[0] for claim in missing}
        await tx.rollback()
        if lost_ids := frozenset(entry_id for entry_id, outcome in outcomes.items() if outcome is None):
            return LostLeases(lost_ids)
        return CancelledEntries({entry_id: outcome for entry_id, outcome in outcomes.items() if outcome is not None})

    # Everything else, in one round trip.
    calls: list[Call[Any]] = [store.release_turns(org_id, stopped_ids)]
    offset = await transaction_offset(tx)
    entry_ids = {progress.claim.contact_id: progress.claim.entry_id for progress in batch}
    # A contact has one entry in a batch.
    moments = {progress.claim.contact_id: progress.claim.due_at for progress in batch}
    waking: list[tuple[str, str]] = []
    if attributes:
        texts = [encode(changed).decode() for changed in attributes.values()]
        org_ids, ids = [org_id] * len(texts), list(attributes)
        causes = [entry_ids[contact_id] for contact_id in ids]
        calls.append(note_attributes("step", at, offset, org_ids, ids, texts, causes))
        calls.append(merge_attributes(org_ids, ids, texts, at))
        waking += [(contact_id, attribute_key(name)) for contact_id, changed in attributes.items() for name in changed]
    if joins:
        joined = [store.EntryJoin(progress.claim.entry_id, effect.entry_id) for progress, effect in joins]
        calls.append(store.join_entries(org_id, joined))
        last = [(progress.claim.contact_id, effect.entry_id) for progress, effect in joins if effect.is_last]
        waking += [(contact_id, store.joining_key(entry_id)) for contact_id, entry_id in last]
    if waking:
        rows = [(org_id, contact_id, key, moments[contact_id]) for contact_id, key in waking]
        calls.append(wake_waiting_entries(rows, at))
    if tags:
        causes = [entry_ids[change.contact_id] for change in tags]
        calls.append(note_tags("step", at, offset, org_id, tags, causes))
        calls.append(store.change_tags(org_id, tags, at))
    calls.append(
        store.add_steps(org_id, [step for progress in batch for step in progress.steps_to_log(new_message_ids)])
    )
    if wallets := {message.wallet_address or "" for message in messages if message.id in new_message_ids}:
        calls.append(announce_messages(org_id, wallets))
    # An entry with a node may have a queued message from an earlier attempt, which is no longer sent.
    if abandoned_ids := [
        progress.claim.entry_id for progress in batch if progress.claim.node_id and progress.run.state in _ENDED_EARLY
    ]:
        calls.append(abandon_outgoing(org_id, abandoned_ids, at))
    if skipped := [row for progress in batch for row in progress.skipped]:
        calls.append(add_skipped_messages(org_id, skipped, at))
    if not any(progress.pending for progress in batch):
        calls.append(COMMIT)
    released, *_ = await run(tx, *calls)

    # Messages that leave the system are stored before anything is sent.
    return RecordedBatch(await _store_outgoing(tx, org_id, keyring, batch, at), released)


def _unseen_period(progress: EntryProgress) -> tuple[datetime, str | None, datetime]:
    """Return the period of which a waiting entry has seen no events: after a moment and an id, until it is due."""
    claim, waiting = progress.claim, progress.run
    assert waiting.since is not None
    assert waiting.due_at is not None
    is_new = (claim.node_id, claim.since) != (waiting.node_id, waiting.since)
    return (waiting.since, waiting.since_id, waiting.due_at) if is_new else (claim.due_at, None, waiting.due_at)


async def _have_facts_changed(
    tx: Transaction,
    org_id: int,
    batch: list[EntryProgress],
    facts: BatchFacts,
    watching: list[EntryProgress],
    joins: list[tuple[EntryProgress, EntryJoined]],
    contact_ids: set[str],
) -> bool:
    """Lock what the decisions on a batch were made on; return whether it has changed since."""
    # Paused or not, the locks keep an automation so until the commit.
    automation_ids = {progress.claim.automation_id for progress in batch}
    _, paused_ids = await run(tx, share_steps(org_id), store.find_paused(org_id, sorted(automation_ids)))
    for claim in (progress.claim for progress in batch):
        decided_on = facts.facts[claim.entry_id]
        if decided_on.cancelled is None and decided_on.paused != (claim.automation_id in paused_ids):
            return True
    if not watching and not joins:
        return False
    # Contacts are locked before entries, here as everywhere, and all of them in one statement, which sorts them: two
    # batches cannot deadlock.
    await run(tx, hold_contacts(contact_ids))
    requests = [facts.requests[progress.claim.entry_id] for progress, _ in joins]
    collecting = await read_collecting(tx, org_id, requests)
    for progress, effect in joins:
        if all(other.entry_id != effect.entry_id for other in collecting.get(progress.claim.entry_id, ())):
            return True
    entry_ids = [progress.claim.entry_id for progress in watching]
    requests = [facts.requests[entry_id] for entry_id in entry_ids]
    return await read_watched(tx, org_id, requests, facts.read_at) != facts.watched.of(entry_ids)


async def record_delivery(
    tx: Transaction, org_id: int, progress: EntryProgress, message_calls: Sequence[Call[None]], at: datetime
) -> EntryProgress | None:
    """Write the progress of an entry after a delivery attempt, with the calls that update its message.

    Returns the progress as written: an entry that was cancelled during the delivery goes no further. Returns None, with
    nothing written, if the lease was lost.
    """
    claim = progress.claim
    for step in progress.steps:
        (is_logged,) = await run(tx, store.has_step(org_id, step))
        if is_logged:
            # An earlier attempt wrote this step, but its commit was not acknowledged.
            return progress
    _, cancelled_outcome = await run(tx, hold_turns([claim.contact_id]), store.find_cancellation(org_id, claim))
    is_cancelled = cancelled_outcome is not None and progress.run.state not in TERMINAL
    if is_cancelled:
        running = replace(progress.run, state=State.RUNNING)
        cancelled = running.to(State.CANCELLED, outcome=cancelled_outcome, error=None, due_at=None)
        progress = replace(progress, run=cancelled, awaits=frozenset())
    # `happened`: the message has left, so its step is written even if the entry has been cancelled.
    (updated_ids,) = await run(tx, store.record_entries(org_id, [progress.update], at, happened=True))
    if not updated_ids:
        await tx.rollback()
        return None
    more: list[Call[Any]] = [abandon_outgoing(org_id, [claim.entry_id], at)] if is_cancelled else []
    if progress.run.state is not State.RUNNING:
        more.append(store.release_turns(org_id, [claim.contact_id]))
    await run(tx, *message_calls, store.add_steps(org_id, progress.steps), *more)
    return progress


async def _store_outgoing(
    tx: Transaction, org_id: int, keyring: Keyring, batch: Sequence[EntryProgress], at: datetime
) -> tuple[OutgoingMessage, ...]:
    """Store the messages that leave the system; return one outgoing message for each.

    The first text counts: a retry sends the stored row under the same id, not a new rendering. A message that was sent
    before is not sent again, however its entry came back to the node.
    """
    pending = [(progress, progress.pending) for progress in batch if progress.pending is not None]
    if not pending:
        return ()
    keys = keyring.of(org_id)
    rows = [new_message(progress.claim, delivery.effect, delivery.topic) for progress, delivery in pending]
    rows = [
        replace(row, recipient=keys.seal_email(row.recipient or "")) if CHANNELS[row.channel].is_sealed else row
        for row in rows
    ]
    _, stored_messages = await run(tx, add_outgoing(org_id, rows, at), claim_outgoing(org_id, rows))
    stored = {message.id: message for message in stored_messages}
    closed_ids: set[str] = set()
    secrets: dict[str, tuple[str, ...]] = {}
    for name, outgoing in OUTGOING.items():
        messages = [message for message in stored_messages if message.channel == name]
        if not messages:
            continue
        digests = {message.id: address_digests(keys, message)[:INDEX] for message in messages}
        closed = await outgoing.find_closed(tx, org_id, set(digests.values()))
        closed_ids |= {message_id for message_id, digest in digests.items() if digest in closed}
        if outgoing.find_secrets is not None:
            secrets[name] = await outgoing.find_secrets(tx, keyring, org_id, at)
    return tuple(
        OutgoingMessage(progress, delivery, stored.get(row.id), row.id in closed_ids, secrets.get(row.channel, ()))
        for (progress, delivery), row in zip(pending, rows, strict=True)
    )


def address_of(keys: OrgKeys, message: StoredMessage) -> str:
    """Return the address of a message in clear."""
    is_sealed = CHANNELS[message.channel].is_sealed
    return keys.open_email(message.recipient) if is_sealed else message.recipient


def address_digests(keys: OrgKeys, message: StoredMessage) -> str:
    """Return the blind indexes of a message's address, one for each secret in use (`OrgKeys.digests`)."""
    return keys.digests(OUTGOING[message.channel].address.index, address_of(keys, message))


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
