"""Merging two contacts that are one person: looking at it first, doing it, taking it back.

One transaction, under the locks of everybody: identifiers find the contact that stays, which gains what it had not, and live entries
go with it. The absorbed contact keeps what it was, and points at the other. Rows follow page by page: see `settling`.
"""

from datetime import datetime
from typing import Any

import msgspec

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, conflict, invalid, unknown
from api.clock import uuid7
from api.contacts.settling import LATER, PAGES_AT_ONCE, move_pages
from api.contacts.views import Shown
from api.language.codec import Json
from api.language.identity import Key, Kind
from api.language.merging import Gain, Person, gain, identifiers_in, with_gain, without_gain
from api.language.problem import Problem
from api.store import merging as store
from api.store.calls import run
from api.store.database import ConflictError, Database, Transaction
from api.store.erasure import Subject
from api.store.locks import hold_contacts, lock_identifiers, share_members
from api.store.merging import Absorbed, MergeRow, Move, Stored
from api.store.timeline import Traces, count_traces


class Pair(msgspec.Struct, frozen=True):
    """The contact that stays, and the one it absorbs."""

    keep_id: str
    absorbed_id: str


class MovesView(msgspec.Struct, frozen=True, rename="camel"):
    """What the contact that stays gains."""

    identifiers: dict[str, str]
    attributes: dict[str, Json]
    tags: tuple[str, ...]
    opted_out: tuple[str, ...]
    segments: tuple[str, ...]


class MergeView(msgspec.Struct, frozen=True, rename="camel"):
    """What a merge does, or did (`id`).

    `hidden`: identifiers of the absorbed contact that find the other from then on, which shows its own. `lost`: its attributes that are
    not seen any more. `rows`: what there is about it. `pending`: not all of that has moved yet.
    """

    id: str | None
    keep: str
    absorbed: str
    moves: MovesView
    hidden: dict[str, str]
    lost: dict[str, Json]
    rows: Traces
    pending: bool = False


class UndoneView(msgspec.Struct, frozen=True, rename="camel"):
    """A merge that was taken back. `stays`: attributes that got another value since, and stay as they are now."""

    id: str
    keep: str
    absorbed: str
    undone_at: datetime
    stays: tuple[str, ...]
    pending: bool


async def preview(database: Database, org_id: int, pair: Pair, shown: Shown) -> MergeView | Refusal:
    """Return what a merge would do. Nothing is written."""
    async with database.transaction() as tx:
        judged = _judged(pair, await store.people(tx, org_id, _ids(pair)))
        if isinstance(judged, Refusal):
            return judged
        rows = await count_traces(tx, Subject(org_id, pair.absorbed_id))
    return _view(None, pair, judged, shown, rows)


async def merge(database: Database, author: Author, pair: Pair, shown: Shown) -> MergeView | Refusal:
    """Make one contact of two."""
    merged = await _merge(database, author, pair, shown)
    if isinstance(merged, Refusal):
        return merged
    assert merged.id is not None
    return msgspec.structs.replace(merged, pending=await _begin(database, author, merged.id))


async def undo(database: Database, author: Author, merge_id: str) -> UndoneView | Refusal:
    """Make two contacts of one again; refused when what it changed is no longer there to be taken back."""
    undone = await _undo(database, author, merge_id)
    if isinstance(undone, Refusal):
        return undone
    return msgspec.structs.replace(undone, pending=await _begin(database, author, merge_id))


class _Judged(msgspec.Struct, frozen=True):
    """Two contacts that can be merged, and what comes of it."""

    keep: Person
    absorbed: Person
    merged: Person
    gain: Gain


def _judged(pair: Pair, both: dict[str, Stored]) -> _Judged | Refusal:
    for field, contact_id in (("keep", pair.keep_id), ("absorb", pair.absorbed_id)):
        found = both.get(contact_id)
        if found is None or found.erased:
            return unknown(f"contact: {field}")
        if found.merged_into is not None:
            return conflict(f"it was merged into contact {found.merged_into}", field)
    keep, absorbed = both[pair.keep_id].person, both[pair.absorbed_id].person
    gains = gain(keep, absorbed)
    merged = with_gain(keep, gains.gained)
    if merged is None:
        return invalid((Problem("absorb", "together they have more than 1,000 attributes, or 256 KB of them"),))
    return _Judged(keep, absorbed, merged, gains)


@retried
async def _merge(database: Database, author: Author, pair: Pair, shown: Shown) -> MergeView | Refusal:
    async with database.transaction() as tx:
        rows = await count_traces(tx, Subject(author.org_id, pair.absorbed_id))
        identities = await _hold(tx, author.org_id, pair)
        judged = _judged(pair, await store.people(tx, author.org_id, _ids(pair)))
        if isinstance(judged, Refusal):
            return judged
        move = Move(pair.absorbed_id, pair.keep_id)
        if await store.is_worked_on(tx, author.org_id, move):
            return conflict(_WORKED_ON)
        merge_id = uuid7(author.now_us)
        keys = tuple(key for key, owner in identities.items() if owner == pair.absorbed_id)
        segments = await store.memberships(tx, author.org_id, pair.absorbed_id)
        there = Absorbed(judged.absorbed.attributes, judged.absorbed.tags, segments)
        row = MergeRow(merge_id, *_ids(pair), judged.gain.gained, keys, there, author.now, None)
        await _write(tx, author, row, judged.merged)
    return _view(merge_id, pair, judged, shown, rows)


async def _write(tx: Transaction, author: Author, row: MergeRow, merged: Person) -> None:
    org_id, move = author.org_id, Move(row.absorbed_id, row.keep_id)
    await store.give_identities(tx, org_id, row.identities, move)
    await store.write_person(tx, org_id, row.keep_id, merged, author.now)
    await store.leave_segments(tx, org_id, row.absorbed_id, row.absorbed.segments)
    gained = {name: row.absorbed.segments[name] for name in row.gained.segments}
    await store.join_segments(tx, org_id, row.keep_id, gained)
    await store.move_live_entries(tx, org_id, move)
    await store.resolve_conflicts(tx, org_id, row.id, row.keep_id, row.absorbed_id)
    await store.point_at(tx, org_id, row.absorbed_id, row.keep_id)
    await store.wake_waiting_entries(tx, org_id, row.keep_id, author.now)
    await store.add_merge(tx, org_id, row, author.now + LATER)
    detail = {"merge": row.id, "absorbed": row.absorbed_id, "attributes": len(row.gained.attributes)}
    await record(tx, author, "contact.merge", row.keep_id, detail)


@retried
async def _undo(database: Database, author: Author, merge_id: str) -> UndoneView | Refusal:
    async with database.transaction() as tx:
        row = await store.find_merge(tx, author.org_id, merge_id)
        if row is None:
            return unknown("merge")
        await lock_identifiers(tx, [(author.org_id, key) for key in row.identities])
        await run(tx, hold_contacts([row.keep_id, row.absorbed_id]), share_members(author.org_id))
        row = await store.find_merge(tx, author.org_id, merge_id, hold=True)
        assert row is not None, "merges are never deleted"
        both = await store.people(tx, author.org_id, [row.keep_id, row.absorbed_id])
        if against := await _against(tx, author.org_id, row, both):
            return Refusal("conflict", tuple(against))
        stays = await _take_back(tx, author, row, both[row.keep_id].person)
    return UndoneView(row.id, row.keep_id, row.absorbed_id, author.now, stays, pending=False)


async def _against(tx: Transaction, org_id: int, row: MergeRow, both: dict[str, Stored]) -> list[Problem]:
    """Return what contradicts taking a merge back."""
    if row.undone_at is not None:
        return [Problem("", f"it was taken back at {row.undone_at.isoformat()}")]
    if any(each.erased for each in both.values()):
        return [Problem("", "the contact was erased since")]
    later_merge = await store.merge_of(tx, org_id, row.keep_id)
    if later_merge is not None:
        return [Problem("", f"the contact was merged into another since: undo the merge {later_merge} first")]
    owners = await store.owners_of(tx, org_id, row.identities)
    gone = [(key, owners.get(key)) for key in row.identities if owners.get(key) != row.keep_id]
    if gone:
        return [Problem(_NAMES[key[0]], f"it belongs to {_somebody(owner)} since") for key, owner in gone]
    back = Move(row.keep_id, row.absorbed_id, await store.family(tx, org_id, row.absorbed_id))
    return [Problem("", _WORKED_ON)] if await store.is_worked_on(tx, org_id, back) else []


async def _take_back(tx: Transaction, author: Author, row: MergeRow, keep: Person) -> tuple[str, ...]:
    """Write the two contacts as they were; return which attributes stay, because they got another value since."""
    org_id = author.org_id
    members = await store.family(tx, org_id, row.absorbed_id)
    move, rest = Move(row.keep_id, row.absorbed_id, members), without_gain(keep, row.gained)
    await store.give_identities(tx, org_id, row.identities, move)
    await store.write_person(tx, org_id, row.keep_id, rest.person, author.now)
    await store.leave_segments(tx, org_id, row.keep_id, row.gained.segments)
    await store.join_segments(tx, org_id, row.absorbed_id, row.absorbed.segments)
    await store.move_live_entries(tx, org_id, move)
    await store.reopen_conflicts(tx, org_id, row.id)
    await store.point_back(tx, org_id, row.absorbed_id, members)
    await store.end_merge(tx, org_id, row.id, author.now, author.now + LATER)
    detail = {"merge": row.id, "absorbed": row.absorbed_id, "stays": len(rest.stays)}
    await record(tx, author, "contact.unmerge", row.keep_id, detail)
    return rest.stays


async def _begin(database: Database, author: Author, merge_id: str) -> bool:
    """Move the first rows; return whether more are left, which follow."""
    if await move_pages(database, author.org_id, merge_id, PAGES_AT_ONCE):
        return False
    async with database.transaction() as tx:
        await store.settle_merge(tx, author.org_id, merge_id, author.now)
    return True


async def _hold(tx: Transaction, org_id: int, pair: Pair) -> dict[Key, str]:
    """Take the locks of both contacts and all that identifies them; return the owners of that."""
    before = await store.identities_of(tx, org_id, _ids(pair))
    await lock_identifiers(tx, [(org_id, key) for key in before])
    await run(tx, hold_contacts(_ids(pair)), share_members(org_id))
    identities = await store.identities_of(tx, org_id, _ids(pair))
    if identities.keys() != before.keys():
        raise ConflictError("an identifier came in at this moment")
    return identities


_WORKED_ON = "an automation is at work for this contact at this moment; try again in a few seconds"
_NAMES = {Kind.WALLET: "walletAddress", Kind.EMAIL: "email", Kind.EXTERNAL_ID: "externalId"}


def _somebody(owner: str | None) -> str:
    return "nobody" if owner is None else f"contact {owner}"


def _ids(pair: Pair) -> tuple[str, str]:
    return pair.keep_id, pair.absorbed_id


def _view(merge_id: str | None, pair: Pair, judged: _Judged, shown: Shown, rows: Traces) -> MergeView:
    gained = judged.gain.gained
    moves = MovesView(
        _shown_of(gained, identifiers_in(gained), shown),
        gained.attributes,
        gained.tags,
        gained.opted_out,
        gained.segments,
    )
    hidden = _shown_of(judged.absorbed, judged.gain.hidden, shown)
    return MergeView(merge_id, *_ids(pair), moves, hidden, judged.gain.lost, rows)


def _shown_of(person: Person, names: tuple[str, ...], shown: Shown) -> dict[str, str]:
    known: dict[str, Any] = {"walletAddress": person.wallet, "externalId": person.external_id}
    if person.email is not None:
        known["email"] = shown(person.email)
    return {name: known[name] for name in names}
