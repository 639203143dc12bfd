"""Writing what was decided, in one transaction: state, steps and the effects that live in the database.

Nothing is written for a worker that lost a lease. Nothing is written either when a decision was made on what is no longer so:
an entry that waits for an event, or looks back at messages and entries, is recorded under the lock of its contact, where what it
saw is read again. Ingest stores an event that somebody may wait for under the same lock. So it comes either before, and is seen
here, or after, and finds the entry waiting: no wake-up is lost.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from api.engine.facts import Seen, watch
from api.engine.outbox import Parcel, pack
from api.engine.perform import Progress, new_attributes, tag_changes
from api.keyring import Keyring
from api.language.run import State
from api.store import engine as store
from api.store.calls import Call, run
from api.store.database import Transaction
from api.store.ingest import merge_attributes
from api.store.locks import hold_contacts
from api.store.outbox import abandon_outgoing


class Written(msgspec.Struct, frozen=True):
    """All of it is in the transaction. `parcels`: what has to leave the house before their entries go on."""

    parcels: tuple[Parcel, ...] = ()


class Stale(msgspec.Struct, frozen=True):
    """Something was decided on what is no longer so; the transaction is rolled back."""


class Lost(msgspec.Struct, frozen=True):
    """The leases of these entries belong to others; the transaction is rolled back."""

    entry_ids: frozenset[str]


Recorded: TypeAlias = Written | Stale | Lost


async def record(tx: Transaction, org_id: int, keyring: Keyring, done: list[Progress], seen: Seen) -> Recorded:
    """Write decisions made on what was seen."""
    again = [each for each in done if each.awaits or seen.asked[each.claim.entry_id].looks_back]
    attributes = new_attributes(done)
    tags = tag_changes(done)
    contacts = {each.claim.contact_id for each in again}.union(attributes, (each.contact_id for each in tags))
    if contacts:
        await run(tx, hold_contacts(contacts))
    if again and not await _is_so(tx, org_id, again, seen):
        await tx.rollback()
        return Stale()
    if lost := await _lost(tx, org_id, done, seen.at):
        await tx.rollback()
        return Lost(lost)
    if attributes:
        texts = list(attributes.values())
        await run(tx, merge_attributes([org_id] * len(texts), list(attributes), texts, seen.at))
    await store.change_tags(tx, org_id, tags, seen.at)
    await _log(tx, org_id, done, seen.at)
    if ended := [each.claim.entry_id for each in done if each.claim.node_id and each.run.state in _GIVEN_UP]:
        await run(tx, abandon_outgoing(org_id, ended))
    return Written(tuple(await pack(tx, org_id, keyring, done, seen.at)))


async def record_sent(
    tx: Transaction, org_id: int, each: Progress, settling: Sequence[Call[None]], at: datetime
) -> Written | Lost:
    """Write what became of an entry after an attempt to send, with what `settling` notes of the message."""
    if lost := await _lost(tx, org_id, [each], at):
        await tx.rollback()
        return Lost(lost)
    await run(tx, *settling)
    await _log(tx, org_id, [each], at)
    return Written()


_GIVEN_UP = frozenset({State.DEAD, State.CANCELLED, State.EXITED})


async def _lost(tx: Transaction, org_id: int, done: list[Progress], at: datetime) -> frozenset[str]:
    """Write where entries stand; return those that are not ours any more."""
    held = await store.record_entries(tx, org_id, [each.standing for each in done], at)
    return frozenset(each.claim.entry_id for each in done) - held


async def _is_so(tx: Transaction, org_id: int, again: list[Progress], seen: Seen) -> bool:
    """Whether what these decisions looked at is still the same."""
    asked = [seen.asked[each.claim.entry_id] for each in again]
    now = await watch(tx, org_id, asked, seen.asked_at)
    return now == seen.watched.of(each.claim.entry_id for each in again)


async def _log(tx: Transaction, org_id: int, done: list[Progress], at: datetime) -> None:
    moves = [
        (each.claim.entry_id, "running", each.run.state.value, each.run.error or each.run.outcome)
        for each in done
        if each.run.state is not State.RUNNING
    ]
    await store.add_transitions(tx, org_id, moves, at)
    new = await store.add_messages(tx, org_id, [message for each in done for message in each.messages], at)
    await store.add_steps(tx, org_id, [step for each in done for step in each.log(new)], at)
