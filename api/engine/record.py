"""Writing what was decided, in one transaction: state, steps and the effects that live in the database.

Nothing is written for a worker that lost a lease. Nothing is written either when a decision was made on what is no longer so:
an entry that waits for an event or gives up waiting, or looks back at messages and entries, is recorded under the lock of its
contact, where what it saw is read again. Ingest stores an event that somebody may wait for under the same lock. So it comes
either before, and is seen here, or after, and finds the entry waiting: no wake-up is lost. An entry that only now begins to
wait saw no events; one that came since it decided to wait makes it due at once. In the same way an entry comes to rest only
while its automation is held as paused: whoever resumes it comes before, and is seen here, or after, and finds the entry.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from api.engine.facts import Seen, watch
from api.engine.outbox import Parcel, pack
from api.engine.perform import Progress, new_attributes, tag_changes
from api.keyring import Keyring
from api.language.run import TERMINAL, State
from api.store import engine as store
from api.store.calls import COMMIT, Call, run
from api.store.database import Transaction
from api.store.engine import Claim, Standing, TagChange
from api.store.facts import read_arrivals
from api.store.inbox import announce_messages
from api.store.ingest import merge_attributes
from api.store.locks import hold_contacts
from api.store.outbox import abandon_outgoing, withhold


class Written(msgspec.Struct, frozen=True):
    """All of it is in the transaction. `parcels`: what has to leave the house before their entries go on."""

    parcels: tuple[Parcel, ...] = ()


class Stale(msgspec.Struct, frozen=True):
    """Something was decided on what is no longer so; the transaction is rolled back."""


class Lost(msgspec.Struct, frozen=True):
    """The leases of these entries belong to others; the transaction is rolled back."""

    entry_ids: frozenset[str]


class CalledOff(msgspec.Struct, frozen=True):
    """These entries are ours, but have to end with these outcomes; the transaction is rolled back."""

    outcomes: dict[str, str]


Recorded: TypeAlias = Written | Stale | Lost | CalledOff


async def record(tx: Transaction, org_id: int, keyring: Keyring, done: list[Progress], seen: Seen) -> Recorded:
    """Write decisions made on what was seen, and commit unless something has to leave the house."""
    if not await _is_resting(tx, org_id, done):
        await tx.rollback()
        return Stale()
    again = [each for each in done if each.awaits or seen.asked[each.claim.entry_id].is_watched]
    attributes, tags = new_attributes(done), tag_changes(done)
    contacts = {each.claim.contact_id for each in again}.union(attributes, (each.contact_id for each in tags))
    if again:
        await run(tx, hold_contacts(contacts))
        if not await _is_so(tx, org_id, again, seen):
            await tx.rollback()
            return Stale()
    messages = [message for each in done for message in each.messages]
    standings = await _standings(tx, org_id, done, seen.at)
    _, held, new = await run(
        tx,
        hold_contacts(contacts),
        store.record_entries(org_id, standings, seen.at),
        store.add_messages(org_id, messages, seen.at),
    )
    if missing := [each.claim for each in done if each.claim.entry_id not in held]:
        outcomes = [(await run(tx, store.called_off(org_id, claim)))[0] for claim in missing]
        await tx.rollback()
        return _missing(missing, outcomes)
    writes = [*_contact_writes(org_id, attributes, tags, seen.at), *_entry_writes(org_id, done, new, seen.at)]
    await run(tx, *writes, *([] if any(each.pending for each in done) else [COMMIT]))
    return Written(tuple(await pack(tx, org_id, keyring, done, seen.at)))


async def record_sent(
    tx: Transaction, org_id: int, each: Progress, settling: Sequence[Call[None]], at: datetime
) -> Progress | Lost:
    """Write what became of an entry after an attempt to send, with what `settling` notes of the message; return where it stands.

    It may have been written before, by a transaction of whose commit nobody heard: then it stays as it is. One that was called off
    meanwhile goes no further.
    """
    claim = each.claim
    for step in each.steps:
        (known,) = await run(tx, store.has_step(org_id, step))
        if known:
            return each
    (called_off,) = await run(tx, store.called_off(org_id, claim))
    stands = _ended(each, called_off)
    (held,) = await run(tx, store.record_entries(org_id, [stands.standing], at, happened=True))
    if not held:
        await tx.rollback()
        return Lost(frozenset({claim.entry_id}))
    unsent = [] if stands is each else [abandon_outgoing(org_id, [claim.entry_id], at)]
    await run(tx, *settling, store.add_steps(org_id, each.steps, at), *unsent)
    return stands


def _missing(claims: Sequence[Claim], called_off: Sequence[str | None]) -> Lost | CalledOff:
    """Return why nothing could be written for these entries; those that are lost first, for the others come again."""
    known = list(zip(claims, called_off, strict=True))
    if lost := frozenset(claim.entry_id for claim, outcome in known if outcome is None):
        return Lost(lost)
    return CalledOff({claim.entry_id: outcome for claim, outcome in known if outcome is not None})


def _ended(each: Progress, called_off: str | None) -> Progress:
    """Return where an entry stands that was called off, if it was and has not come to its end."""
    if called_off is None or each.run.state in TERMINAL:
        return each
    ended = replace(each.run, state=State.RUNNING).to(State.CANCELLED, outcome=called_off, error=None, due_at=None)
    return replace(each, run=ended, awaits=frozenset())


_GIVEN_UP = frozenset({State.DEAD, State.CANCELLED, State.EXITED})


async def _is_resting(tx: Transaction, org_id: int, done: list[Progress]) -> bool:
    """Whether the automations of entries that come to rest are paused still."""
    automation_ids = {each.claim.automation_id for each in done if each.run.state is State.PAUSED}
    if not automation_ids:
        return True
    (paused,) = await run(tx, store.share_paused(org_id, sorted(automation_ids)))
    return paused == len(automation_ids)


async def _is_so(tx: Transaction, org_id: int, again: list[Progress], seen: Seen) -> bool:
    """Whether what these decisions looked at is still the same."""
    asked = [seen.asked[each.claim.entry_id] for each in again]
    now = await watch(tx, org_id, asked, seen.asked_at)
    return now == seen.watched.of(each.claim.entry_id for each in again)


async def _standings(tx: Transaction, org_id: int, done: list[Progress], at: datetime) -> list[Standing]:
    """Return where entries stand; one that waits for an event that has come since is due."""
    came: Mapping[str, object] = {}
    if waiting := [(each.claim, each.awaits, at) for each in done if each.awaits]:
        (came,) = await run(tx, read_arrivals(org_id, waiting))
    return [replace(each.standing, due_at=at) if each.claim.entry_id in came else each.standing for each in done]


def _contact_writes(
    org_id: int, attributes: dict[str, str], tags: list[TagChange], at: datetime
) -> Iterator[Call[None]]:
    if attributes:
        texts = list(attributes.values())
        yield merge_attributes([org_id] * len(texts), list(attributes), texts, at)
    if tags:
        yield store.change_tags(org_id, tags, at)


def _entry_writes(org_id: int, done: list[Progress], new: set[str], at: datetime) -> Iterator[Call[None]]:
    """Return what is written beside where the entries stand and their in-app messages, of which `new` were not there yet."""
    yield store.add_steps(org_id, [step for each in done for step in each.log(new)], at)
    if wallets := {message.wallet for each in done for message in each.messages if message.id in new}:
        yield announce_messages(org_id, wallets)
    if ended := [each.claim.entry_id for each in done if each.claim.node_id and each.run.state in _GIVEN_UP]:
        yield abandon_outgoing(org_id, ended, at)
    if withheld := [row for each in done for row in each.withheld]:
        yield withhold(org_id, withheld, at)
