"""Merging two contacts of one person: preview, merge, undo, and moving their rows.

A merge is one transaction, under the locks of both contacts and of all their identifiers. After the commit, the
identifiers find the contact that is kept. This contact gains the attributes, tags and segments that it did not have,
and live entries follow it. The absorbed contact keeps its own data, and points at the other; that makes undo possible.

Rows (events, starts, messages, entries, on-chain events) are moved afterwards, page by page. Ingest recognises a
contact without a lock, so an event can be committed to the absorbed contact just after the merge. No ingest transaction
lasts longer than a few seconds, so everything is moved once more a minute later, by any process;
`contact_merges.due_at` schedules that, even if the first process dies. An undo moves rows back in the same way.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from api.automations.automations import Author, Refusal, conflict, invalid, record, retry_conflicts, unknown
from api.clock import Clock, uuid7
from api.contacts.contacts import IDENTIFIER_FIELDS
from api.crypto import EmailDisplay
from api.jobs import every, one_by_one
from api.store import merges as store
from api.store.changes import MergeMoment
from api.store.contacts import ContactKey, count_contact_rows
from api.store.database import Database, Transaction, TransactionConflictError, transaction_offset
from api.store.locks import hold_contacts, hold_identifiers, share_members
from api.store.merges import AbsorbedValues, MergePart, MergeRow, RowMove, StoredContact
from api.store.query import run
from workbench.language.contact import (
    ContactRecord,
    MergePlan,
    apply_merge,
    attributes_since_merge,
    identifier_names,
    plan_merge,
    undo_merge,
)
from workbench.language.problem import Problem
from workbench.language.responses import ContactCounts, MergeView, MovesView

SETTLE_DELAY = timedelta(minutes=1)  # ingest transactions that missed the merge have ended by then
CHECK_INTERVAL_S = 15.0
PAGE_ROWS = 1_000  # of one transaction; 195,000 events in three months of partitions take 12 s
PAGES_PER_REQUEST = 20  # moved before the response to a merge or undo
MERGES_PER_RUN = 100

_PARTS: tuple[MergePart, ...] = ("entries", "messages", "events", "onchain", "starts")
_BUSY = "an automation is working on this contact right now; try again in a few seconds"


class Pair(msgspec.Struct, frozen=True):
    keep_id: str
    absorbed_id: str

    @property
    def ids(self) -> tuple[str, str]:
        return self.keep_id, self.absorbed_id


class UndoneView(msgspec.Struct, frozen=True, rename="camel"):
    """An undone merge. `stays`: gained attributes that have changed since, and therefore stay."""

    id: str
    keep: str
    absorbed: str
    undone_at: datetime
    kept_attributes: tuple[str, ...] = msgspec.field(name="stays")
    pending: bool


async def preview(database: Database, org_id: int, pair: Pair, show: EmailDisplay) -> MergeView | Refusal:
    """Return the effects that a merge would have. Nothing is written."""
    async with database.transaction() as tx:
        plan = _plan(pair, await store.find_stored_contacts(tx, org_id, pair.ids))
        if isinstance(plan, Refusal):
            return plan
        rows = await count_contact_rows(tx, ContactKey(org_id, pair.absorbed_id))
    return _view(None, pair, plan, show, rows)


async def merge(database: Database, author: Author, pair: Pair, show: EmailDisplay) -> MergeView | Refusal:
    merged = await _merge(database, author, pair, show)
    if isinstance(merged, Refusal):
        return merged
    assert merged.id is not None
    return msgspec.structs.replace(merged, pending=await _move_first_pages(database, author, merged.id))


async def undo(database: Database, author: Author, merge_id: str) -> UndoneView | Refusal:
    """Undo a merge. Refused if its changes have been overtaken by an erasure, another merge or a moved identifier."""
    undone = await _undo(database, author, merge_id)
    if isinstance(undone, Refusal):
        return undone
    return msgspec.structs.replace(undone, pending=await _move_first_pages(database, author, merge_id))


class _Merge(msgspec.Struct, frozen=True):
    keep: ContactRecord
    absorbed: ContactRecord
    merged: ContactRecord
    changes: MergePlan


def _plan(pair: Pair, both: dict[str, StoredContact]) -> _Merge | Refusal:
    for field, contact_id in (("keep", pair.keep_id), ("absorb", pair.absorbed_id)):
        contact = both.get(contact_id)
        if contact is None or contact.erased:
            return unknown("contact", field)
        if contact.merged_into is not None:
            return conflict(f"this contact was merged into {contact.merged_into}", field)
    keep, absorbed = both[pair.keep_id], both[pair.absorbed_id]
    changes = plan_merge(keep, absorbed)
    merged = apply_merge(keep, changes.gained)
    if merged is None:
        too_large = "the merged contact would have more than 1,000 attributes, or more than 256 KB of them"
        return invalid((Problem("absorb", too_large),))
    return _Merge(keep, absorbed, merged, changes)


@retry_conflicts
async def _merge(database: Database, author: Author, pair: Pair, show: EmailDisplay) -> MergeView | Refusal:
    async with database.transaction() as tx:
        # Counted before the locks are taken: it may take a while, and ingest waits for these locks.
        rows = await count_contact_rows(tx, ContactKey(author.org_id, pair.absorbed_id))
        # Identifiers first, then contacts, in the order of docs/decisions/0002.
        before = await store.find_identities(tx, author.org_id, pair.ids)
        await run(tx, hold_identifiers([(author.org_id, key) for key in before]))
        await run(tx, hold_contacts(pair.ids), share_members(author.org_id))
        identities = await store.find_identities(tx, author.org_id, pair.ids)
        if identities.keys() != before.keys():
            raise TransactionConflictError("an identifier was added during the merge")  # retried
        plan = _plan(pair, await store.find_stored_contacts(tx, author.org_id, pair.ids))
        if isinstance(plan, Refusal):
            return plan
        move = RowMove(pair.absorbed_id, pair.keep_id)
        if await store.has_claimed_entries(tx, author.org_id, move):
            return conflict(_BUSY)  # one decision of a worker must not mix the facts of two contacts
        merge_id = uuid7(author.now_us)
        moment = MergeMoment(merge_id, author.now, await transaction_offset(tx))
        keys = tuple(key for key, owner in identities.items() if owner == pair.absorbed_id)
        segments = await store.find_memberships(tx, author.org_id, pair.absorbed_id)
        snapshot = AbsorbedValues(plan.absorbed.attributes, plan.absorbed.tags, segments)
        row = MergeRow(merge_id, *pair.ids, plan.changes.gained, keys, snapshot, author.now, None)
        await store.move_identities(tx, author.org_id, row.identities, move)
        await store.write_contact(tx, author.org_id, row.keep_id, plan.merged, moment)
        await store.leave_segments(tx, author.org_id, row.absorbed_id, row.absorbed.segments, moment)
        gained = {name: row.absorbed.segments[name] for name in row.gained.segments}
        await store.join_segments(tx, author.org_id, row.keep_id, gained.keys(), gained.values(), moment)
        await store.move_live_entries(tx, author.org_id, move)
        await store.resolve_conflicts(tx, author.org_id, row)
        await store.mark_merged(tx, author.org_id, row.absorbed_id, row.keep_id, moment)
        await store.wake_entries_of_contact(tx, author.org_id, row.keep_id, author.now)
        await store.add_merge(tx, author.org_id, row, author.now + SETTLE_DELAY)
        detail = {"merge": row.id, "absorbed": row.absorbed_id, "attributes": len(row.gained.attributes)}
        await record(tx, author, "contact.merge", row.keep_id, detail)
    return _view(merge_id, pair, plan, show, rows)


@retry_conflicts
async def _undo(database: Database, author: Author, merge_id: str) -> UndoneView | Refusal:
    async with database.transaction() as tx:
        row = await store.find_merge(tx, author.org_id, merge_id)
        if row is None:
            return unknown("merge")
        await run(tx, hold_identifiers([(author.org_id, key) for key in row.identities]))
        await run(tx, hold_contacts([row.keep_id, row.absorbed_id]), share_members(author.org_id))
        # Read again under the locks: another undo, merge or erasure may have been faster.
        row = await store.hold_merge(tx, author.org_id, merge_id)
        both = await store.find_stored_contacts(tx, author.org_id, [row.keep_id, row.absorbed_id])
        if conflicts := await _find_undo_conflicts(tx, author.org_id, row, both):
            return Refusal("conflict", tuple(conflicts))
        members = await store.list_merged_ids(tx, author.org_id, row.absorbed_id)
        move = RowMove(row.keep_id, row.absorbed_id, members)
        moment = MergeMoment(row.id, author.now, await transaction_offset(tx))
        rest = undo_merge(both[row.keep_id], both[row.absorbed_id], row.gained)
        await store.move_identities(tx, author.org_id, row.identities, move)
        await store.write_contact(tx, author.org_id, row.keep_id, rest.contact, moment)
        await store.leave_segments(tx, author.org_id, row.keep_id, row.gained.segments, moment)
        segments = row.absorbed.segments
        await store.join_segments(tx, author.org_id, row.absorbed_id, segments.keys(), segments.values(), moment)
        await store.move_live_entries(tx, author.org_id, move)
        for contact_id in (row.keep_id, row.absorbed_id):
            await store.wake_entries_of_contact(tx, author.org_id, contact_id, author.now)
        await store.reopen_conflicts(tx, author.org_id, row.id)
        await store.unmark_merged(tx, author.org_id, row.absorbed_id, members, moment)
        await store.mark_merge_undone(tx, author.org_id, row.id, author.now, author.now + SETTLE_DELAY)
        detail = {"merge": row.id, "absorbed": row.absorbed_id, "stays": len(rest.kept_attributes)}
        await record(tx, author, "contact.unmerge", row.keep_id, detail)
    return UndoneView(row.id, row.keep_id, row.absorbed_id, author.now, rest.kept_attributes, pending=False)


async def _find_undo_conflicts(
    tx: Transaction, org_id: int, row: MergeRow, both: dict[str, StoredContact]
) -> list[Problem]:
    if row.undone_at is not None:
        return [Problem("", f"this merge was undone at {row.undone_at.isoformat()}")]
    if any(contact.erased for contact in both.values()):
        return [Problem("", "the contact has been erased since")]
    later_merge = await store.find_merge_of(tx, org_id, row.keep_id)
    if later_merge is not None:
        return [Problem("", f"the contact has been merged into another since: undo merge {later_merge} first")]
    owners = await store.find_identifier_owners(tx, org_id, row.identities)
    moved = [(key, owners.get(key)) for key in row.identities if owners.get(key) != row.keep_id]
    if moved:
        return [
            Problem(
                IDENTIFIER_FIELDS[key[0]],
                "this identifier was removed" if owner is None else f"this identifier now belongs to contact {owner}",
            )
            for key, owner in moved
        ]
    back = RowMove(row.keep_id, row.absorbed_id, await store.list_merged_ids(tx, org_id, row.absorbed_id))
    return [Problem("", _BUSY)] if await store.has_claimed_entries(tx, org_id, back) else []


async def _move_first_pages(database: Database, author: Author, merge_id: str) -> bool:
    """Move the first rows; return whether more are left, which a scheduled run moves."""
    if await move_pages(database, author.org_id, merge_id, PAGES_PER_REQUEST):
        return False
    async with database.transaction() as tx:
        await store.schedule_merge(tx, author.org_id, merge_id, author.now)
    return True


def _view(merge_id: str | None, pair: Pair, plan: _Merge, show: EmailDisplay, rows: ContactCounts) -> MergeView:
    gained = plan.changes.gained
    moves = MovesView(
        _visible_identifiers(gained, identifier_names(gained), show),
        gained.attributes,
        gained.tags,
        gained.opted_out,
        gained.segments,
    )
    hidden = _visible_identifiers(plan.absorbed, plan.changes.hidden, show)
    return MergeView(merge_id, *pair.ids, moves, hidden, plan.changes.lost, rows)


def _visible_identifiers(contact: ContactRecord, names: tuple[str, ...], show: EmailDisplay) -> dict[str, str]:
    values: dict[str, Any] = {"walletAddress": contact.wallet, "externalId": contact.external_id}
    if contact.email is not None:
        values["email"] = show(contact.email)
    return {name: values[name] for name in names}


async def keep_settled(database: Database, clock: Clock) -> None:
    await every(CHECK_INTERVAL_S, "settle_merges", lambda: settle_due(database, clock.now()))


async def settle_due(database: Database, now: datetime) -> int:
    """Move all rows of merges that are due; return the number of merges."""
    async with database.transaction() as tx:
        due = await store.find_due_merges(tx, now, MERGES_PER_RUN)

    async def settle(merge: tuple[int, str]) -> None:
        await _copy_late_changes(database, *merge, now)
        await move_pages(database, *merge)
        await _finish_or_reschedule(database, *merge, now)

    await one_by_one("settle_merges", due, settle)
    return len(due)


async def move_pages(database: Database, org_id: int, merge_id: str, max_pages: int | None = None) -> bool:
    """Move rows, at most `max_pages` pages; return whether no row is left."""

    @retry_conflicts
    async def move_page(part: MergePart) -> int:
        async with database.transaction() as tx:
            row = await store.hold_merge(tx, org_id, merge_id)
            move = await direction(tx, org_id, row)
            return 0 if move.from_id == move.to_id else await store.move_rows(tx, org_id, part, move, PAGE_ROWS)

    left = max_pages
    for part in _PARTS:
        while await move_page(part) == PAGE_ROWS:
            left = None if left is None else left - 1
            if left == 0:
                return False
    return True


async def direction(tx: Transaction, org_id: int, row: MergeRow) -> RowMove:
    """Return the move that a merge needs: to the kept contact, or after an undo back to the absorbed one."""
    absorbed, keep = [
        await store.find_kept_contact(tx, org_id, contact_id) for contact_id in (row.absorbed_id, row.keep_id)
    ]
    if row.undone_at is None:
        return RowMove(row.absorbed_id, absorbed)
    # Only the rows that came from the absorbed contact, or from contacts that had been merged into it before.
    return RowMove(keep, absorbed, await store.list_merged_ids(tx, org_id, row.absorbed_id))


@retry_conflicts
async def _copy_late_changes(database: Database, org_id: int, merge_id: str, now: datetime) -> None:
    """Copy attributes and tags that were written to the absorbed contact during the merge to the kept one."""
    async with database.transaction() as tx:
        row = await store.find_merge(tx, org_id, merge_id)
        if row is None or row.undone_at is not None:
            return
        keep_id = await store.find_kept_contact(tx, org_id, row.absorbed_id)
        await run(tx, hold_contacts([keep_id, row.absorbed_id]))
        both = await store.find_stored_contacts(tx, org_id, [keep_id, row.absorbed_id])
        keep, absorbed = both[keep_id], both[row.absorbed_id]
        attributes = attributes_since_merge(row.absorbed.attributes, absorbed.attributes)
        tags = [tag for tag in absorbed.tags if tag not in (*row.absorbed.tags, *keep.tags)]
        if keep.erased or absorbed.merged_into != keep_id or not (attributes or tags):
            return
        contact = msgspec.structs.replace(keep, attributes=keep.attributes | attributes, tags=(*keep.tags, *tags))
        moment = MergeMoment(row.id, now, await transaction_offset(tx))
        await store.write_contact(tx, org_id, keep_id, contact, moment)
        # Record what was copied: the next run must not copy it again over later values of the kept contact.
        snapshot = AbsorbedValues(absorbed.attributes, absorbed.tags, row.absorbed.segments)
        await store.update_absorbed(tx, org_id, msgspec.structs.replace(row, absorbed=snapshot))


@retry_conflicts
async def _finish_or_reschedule(database: Database, org_id: int, merge_id: str, now: datetime) -> None:
    """Schedule another move unless this was the last one; wake waiting entries, which may have missed a moved event."""
    async with database.transaction() as tx:
        row = await store.find_merge(tx, org_id, merge_id)
        assert row is not None, "merges are never deleted"
        move = await direction(tx, org_id, row)
        await run(tx, hold_contacts([move.from_id, move.to_id]))
        await store.hold_merge(tx, org_id, merge_id)
        is_busy = move.from_id != move.to_id and await store.has_claimed_entries(tx, org_id, move)
        is_last = now >= (row.undone_at or row.created_at) + SETTLE_DELAY and not is_busy
        await store.wake_entries_of_contact(tx, org_id, move.to_id, now)
        await store.schedule_merge(tx, org_id, merge_id, None if is_last else now + SETTLE_DELAY)
