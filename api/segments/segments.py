"""Segments defined by queries: new ones, changes, refreshing at once, trying a query, putting one away.

A definition takes effect together with its members: the query runs first, and one transaction writes both, with the audit row. So there
is no segment whose query never worked, and who reads never meets a new definition with old members.
"""

from datetime import datetime, timedelta

import msgspec

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, conflict, invalid, unknown
from api.clock import monotonic_ns, uuid7
from api.language.codec import encode
from api.language.problem import Problem
from api.segments.definition import Asked, Draft, Edit, Trial, asked_by, question, sealed, written
from api.segments.finding import Desk, Found, found
from api.segments.uses import uses
from api.store import members
from api.store import segments as store
from api.store.calls import run
from api.store.database import Database, Transaction
from api.store.locks import hold_members
from api.store.members import Change, Place
from api.store.segments import NewSegment, Refreshed, SegmentRow

RECOUNT = timedelta(hours=1)  # of audiences, which lose members to erasures and merges only
_SAMPLE = 20
_COMMITTED = timedelta(minutes=5)  # within that, what somebody was asked to do is done, or never will be


class Filled(msgspec.Struct, frozen=True):
    """A segment with new members: what was found, who came and who went; None where nothing was looked for."""

    row: SegmentRow
    found: Found | None = None
    change: Change | None = None


class Preview(msgspec.Struct, frozen=True):
    """What a query would find: some of the contacts, and who would come to the segment it is tried for, and go."""

    found: Found
    sample: list[str]
    seconds: float
    change: Change | None


@retried
async def create(desk: Desk, author: Author, draft: Draft) -> Filled | Refusal:
    """Store a new segment with its members."""
    if await _find(desk, author.org_id, draft.name) is not None:
        return _taken(draft.name)
    params = written(sealed(draft.asked.params, desk.keyring.of(author.org_id)))
    new = NewSegment(
        *(author.org_id, uuid7(author.now_us), draft.name, "query", draft.asked.sql, params, draft.every_seconds, "{}"),
        *(author.key_id, author.now),
    )
    async with found(desk, question(author.org_id, draft.asked)) as (tx, there):
        row = await store.insert_segment(tx, new)
        if row is None:
            return _taken(draft.name)
        await record(tx, author, "segment.create", row.id, {"name": row.name, "size": there.size})
        change = await fill(tx, row, there, author.now)
    return await mended(desk, row, there, change, author.now)


@retried
async def update(desk: Desk, author: Author, name: str, edit: Edit) -> Filled | Refusal:
    """Change a segment; refused when it is no longer at the revision the edit started from."""
    row = _changeable(await _find(desk, author.org_id, name), edit)
    if isinstance(row, Refusal):
        return row
    changed = _changed(desk, row, edit)
    if (changed.sql, changed.params) == (row.sql, row.params):
        return await _change_every(desk, author, name, edit)
    async with found(desk, question(author.org_id, asked_by(changed))) as (tx, there):
        locked = _changeable(await store.lock_segment(tx, author.org_id, name), edit)
        if isinstance(locked, Refusal):
            return locked
        await write(tx, author, changed, "segment.update", {"changed": ["sql"], "size": there.size})
        change = await fill(tx, changed, there, author.now)
    return await mended(desk, row, there, change, author.now)


async def refresh(desk: Desk, row: SegmentRow, now: datetime) -> Filled | Refusal:
    """Let the members be those whom the query finds now; those of an audience are only counted anew."""
    if row.kind == "audience":
        await _mend(desk.database, row, row.refreshed_at or row.updated_at)
        return await _recount(desk.database, row, now)
    async with found(desk, question(row.org_id, asked_by(row))) as (tx, there):
        locked = await store.lock_segment(tx, row.org_id, row.name)
        if locked is None or (locked.id, locked.revision) != (row.id, row.revision):
            return conflict("the segment was changed at this moment")
        if locked.refreshed_at is not None and locked.refreshed_at > now:
            return Filled(locked)  # by a refresh that began later
        change = await fill(tx, row, there, now)
    return await mended(desk, row, there, change, now)


@retried
async def refresh_named(desk: Desk, author: Author, name: str) -> Filled | Refusal:
    """Do that at once for the segment of a name."""
    row = await _find(desk, author.org_id, name)
    return unknown("segment") if row is None else await refresh(desk, row, author.now)


async def preview(desk: Desk, org_id: int, trial: Trial) -> Preview:
    """Return what a query would find. Nothing is written."""
    began_ns = monotonic_ns()
    async with found(desk, question(org_id, trial.asked)) as (tx, there):
        sample = await members.sample_wanted(tx, _SAMPLE)
        row = None if trial.name is None else await store.find_segment(tx, org_id, trial.name)
        change = None if row is None else await members.compare_members(tx, Place(org_id, row.name))
    return Preview(there, sample, (monotonic_ns() - began_ns) / 1e9, change)


async def archive(desk: Desk, author: Author, name: str) -> SegmentRow | Refusal:
    """Put a segment away with its members; refused, naming them, while automations or other segments ask for it."""
    async with desk.turns.of(author.org_id):
        row = await _archive(desk.database, author, name)
    if isinstance(row, SegmentRow):
        await _clear(desk.database, row)
    return row


async def fill(tx: Transaction, row: SegmentRow, there: Found, at: datetime) -> Change:
    """Make the members of a locked segment those who are wanted."""
    change = await members.change_members(tx, _place(row), at)
    refreshed = Refreshed(there.size, change.entered, change.departed, at, at + interval(row))
    await store.record_refresh(tx, row, refreshed)
    return change


def interval(row: SegmentRow) -> timedelta:
    """Return how often a segment is refreshed."""
    return RECOUNT if row.every_seconds is None else timedelta(seconds=row.every_seconds)


async def write(tx: Transaction, author: Author, row: SegmentRow, action: str, detail: dict[str, object]) -> None:
    """Write the definition of a locked segment at its new revision, with the audit row."""
    await store.write_segment(tx, row, author.key_id, author.now)
    await record(tx, author, action, row.id, {"name": row.name, **detail, "revision": row.revision})


async def mended(desk: Desk, row: SegmentRow, there: Found, change: Change, since: datetime) -> Filled:
    """Return a segment that was filled, without those who were erased or merged since that began, however long it took."""
    return Filled(await _mend(desk.database, row, since), there, change)


@retried
async def _mend(database: Database, row: SegmentRow, since: datetime) -> SegmentRow:
    async with database.transaction() as tx:
        await run(tx, hold_members(row.org_id))
        if by := await members.mend_members(tx, _place(row), since - _COMMITTED):
            await store.correct_size(tx, row, by)
        return await store.find_segment(tx, row.org_id, row.name) or row


@retried
async def _change_every(desk: Desk, author: Author, name: str, edit: Edit) -> Filled | Refusal:
    async with desk.database.transaction() as tx:
        row = _changeable(await store.lock_segment(tx, author.org_id, name), edit)
        if isinstance(row, Refusal):
            return row
        changed = _changed(desk, row, edit)
        if changed.every_seconds == row.every_seconds:
            return Filled(row)
        await write(tx, author, changed, "segment.update", {"changed": ["everySeconds"]})
        return Filled(await store.find_segment(tx, author.org_id, name) or changed)


@retried
async def _recount(database: Database, row: SegmentRow, now: datetime) -> Filled | Refusal:
    async with database.transaction() as tx:
        locked = await store.lock_segment(tx, row.org_id, row.name)
        if locked is None or locked.refreshed_at is None:
            return conflict("more contacts of the audience are still to come")
        size = await members.count_members(tx, _place(locked))
        change = Change(0, max(0, locked.size - size))
        await store.record_refresh(tx, locked, Refreshed(size, 0, change.departed, now, now + RECOUNT))
        return Filled(await store.find_segment(tx, row.org_id, row.name) or locked, None, change)


@retried
async def _archive(database: Database, author: Author, name: str) -> SegmentRow | Refusal:
    async with database.transaction() as tx:
        row = await store.lock_segment(tx, author.org_id, name)
        if row is None:
            return unknown("segment")
        if asking := await uses(tx, author.org_id, name):
            return Refusal("conflict", tuple(Problem("", f"{each} asks for it") for each in asking))
        await members.drop_all(tx, _place(row))
        await members.forget_parts(tx, row.org_id, row.id)
        await store.archive_segment(tx, row, author.key_id, author.now)
        await record(tx, author, "segment.archive", row.id, {"name": name, "size": row.size})
    return msgspec.structs.replace(row, archived_at=author.now, revision=row.revision + 1, size=0)


@retried
async def _clear(database: Database, row: SegmentRow) -> None:
    async with database.transaction() as tx:
        await run(tx, hold_members(row.org_id))
        await members.clear_members(tx, _place(row))


async def _find(desk: Desk, org_id: int, name: str) -> SegmentRow | None:
    async with desk.database.transaction() as tx:
        return await store.find_segment(tx, org_id, name)


def _changeable(row: SegmentRow | None, edit: Edit) -> SegmentRow | Refusal:
    if row is None:
        return unknown("segment")
    if row.kind == "audience":
        return invalid((Problem("", "an audience is frozen: it has no query, and only other contacts can replace it"),))
    if row.revision != edit.revision:
        return conflict(f"the segment is at revision {row.revision} now, not {edit.revision}", "revision")
    return row


def _changed(desk: Desk, row: SegmentRow, edit: Edit) -> SegmentRow:
    """Return a segment at its next revision, with the changes of an edit."""
    every = edit.every_seconds or row.every_seconds
    assert every is not None
    since = row.refreshed_at or row.updated_at
    changed = msgspec.structs.replace(
        row, every_seconds=every, revision=row.revision + 1, due_at=since + timedelta(seconds=every)
    )
    if edit.asked is None:
        return changed
    params = sealed(edit.asked.params, desk.keyring.of(row.org_id))
    if Asked(edit.asked.sql, params) == asked_by(row):
        return changed
    return msgspec.structs.replace(changed, sql=edit.asked.sql, params=None if params is None else encode(params))


def _taken(name: str) -> Refusal:
    return conflict(f"there is a segment {name!r} already", "name")


def _place(row: SegmentRow) -> Place:
    return Place(row.org_id, row.name)
