"""Segments: their definitions, their refreshes, and their members.

A refresh copies the ids that a query returns into a temporary table, block by block, resolves them to contacts in a
second one (`wanted`), and makes the members equal to it, all in one transaction. This process holds at most one block
of ids at a time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

import msgspec

from api.store.changes import note_entered, note_left
from api.store.database import Transaction, load, transaction_offset
from api.store.locks import REFRESHING, try_turn
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.responses import MembersChange, SegmentKind, SegmentSize

_SQL = load("segments")


# --- Definitions


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment as stored.

    `params` and `provenance` are JSON text with sealed addresses; `created_by`, `updated_by` are ids of keys.
    """

    org_id: int
    id: str
    name: str
    kind: SegmentKind
    sql: str | None
    params: Json | None
    every_seconds: int | None
    provenance: Json
    size: int
    refreshed_at: datetime | None
    last_error: str | None
    failing_since: datetime | None
    failures: int
    due_at: datetime | None
    revision: int
    lease_token: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    archived_at: datetime | None
    watermark: Json | None


@query
async def insert_segment(
    tx: Transaction,
    org_id: int,
    segment_id: Uuid,
    name: str,
    key_id: Uuid,
    at: datetime,
    *,
    kind: SegmentKind,
    provenance: Json = b"{}",
    sql: str | None = None,
    params: Json | None = None,
    every_seconds: int | None = None,
) -> SegmentRow | None:
    """Store a new segment and return it; None if the name is taken."""


@query
async def find_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None: ...


@query
async def lock_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None:
    """Return a segment, locked against changes and refreshes until this transaction ends."""


@query
async def list_segments(tx: Transaction, org_id: int) -> list[SegmentRow]: ...


@query
async def write_segment(tx: Transaction, row: SegmentRow, key_id: Uuid, at: datetime) -> None:
    """Change the definition of a locked segment."""


@query
async def archive_segment(tx: Transaction, row: SegmentRow, key_id: Uuid, at: datetime) -> None: ...


@query
async def find_published_specs(tx: Transaction, org_id: int) -> list[tuple[str, Json, Json]]:
    """Return names, published triggers and graphs (JSON text) of automations that mention segments."""


# --- Refreshes


class RefreshResult(msgspec.Struct, frozen=True):
    """The result of a refresh: the size, how many contacts entered and left, and when to refresh again.

    `watermark`: JSON text, what the members were computed from; None if the next refresh has to read everything.
    """

    size: int
    entered: int
    departed: int
    at: datetime
    due_at: datetime | None
    watermark: Json | None = None


@query
async def find_organizations_due(tx: Transaction, now: datetime) -> list[int]:
    """Return organizations with a segment to refresh, in the order of their turns."""


async def claim_due_segment(tx: Transaction, org_id: int, now: datetime, until: datetime) -> SegmentRow | None:
    """Claim the segment that has been due longest, or None if a process is refreshing one of the organization."""
    return await _claim_due_segment(tx, org_id, now, until) if await try_turn(tx, REFRESHING, org_id) else None


@query
async def _claim_due_segment(tx: Transaction, org_id: int, now: datetime, until: datetime) -> SegmentRow | None: ...


@query
async def record_refresh(tx: Transaction, org_id: int, segment_id: Uuid, result: RefreshResult) -> None:
    """Record the result of refreshing a locked segment."""


@query
async def record_failure(tx: Transaction, row: SegmentRow, error: str, at: datetime, due_at: datetime) -> None:
    """Record why a refresh failed, unless the segment was refreshed, changed or claimed since."""


@query
async def postpone_refresh(tx: Transaction, row: SegmentRow, at: datetime, due_at: datetime, error: str | None) -> None:
    """Refresh a segment later; `error` says what a late refresh waits for."""


@query
async def correct_size(tx: Transaction, row: SegmentRow, by: int) -> None:
    """Add `by` to the recorded size: the members that have entered since, less those that have left."""


# --- Sizes over time

_SIZE_RETENTION = timedelta(days=400)


@query
async def list_daily_sizes(tx: Transaction, org_id: int, now: datetime, days: int) -> dict[str, tuple[int | None, ...]]:
    """Return the size of each segment on each of the last days, oldest first, by segment id; None before it existed."""


@query
async def list_sizes(tx: Transaction, row: SegmentRow, limit: int) -> list[SegmentSize]:
    """Return the sizes of a segment after its newest changes, newest first."""


@query
async def delete_old_sizes(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _SIZE_RETENTION
) -> RowCount: ...


# --- Contacts that changed


class ChangedSince(msgspec.Struct, frozen=True):
    """What a snapshot does not have.

    The transactions in `open` and from `end` on; `oldest`: the first of all of these. What has only a time counts from
    `since` on, and new contacts from `first_id` to `last_id`. `events`: only events of these names, None: all.
    `contact_values` and `memberships`: whether changes of these count.
    """

    oldest: int
    end: int
    open: list[int]
    since: datetime
    first_id: Uuid
    last_id: Uuid
    events: Sequence[str] | None
    contact_values: bool
    memberships: bool


@query
async def find_unsettled(tx: Transaction, org_id: int) -> list[Uuid]:
    """Return the contacts of merges whose rows are still being moved."""


@query
async def find_oldest_transaction(tx: Transaction) -> datetime | None:
    """Return since when the oldest other transaction of the application is open; None if there is none."""


@query
async def list_partitions(tx: Transaction) -> list[int]:
    """Return the oids of the partitions of events."""


@query
async def has_many_new_events(tx: Transaction, org_id: int, oldest: int, limit: int) -> bool:
    """Return whether transactions from the number `oldest` on have stored more than so many events."""


@query
async def find_changed(tx: Transaction, org_id: int, changed: ChangedSince, limit: int) -> list[Uuid]: ...


@query
async def find_occurred(
    tx: Transaction, org_id: int, low: datetime, high: datetime, events: Sequence[str] | None, limit: int
) -> list[Uuid]:
    """Return the contacts with an event that occurred in this time, of these names (None: all)."""


@query
async def find_received(
    tx: Transaction, org_id: int, low: datetime, high: datetime, events: Sequence[str] | None, limit: int
) -> list[Uuid]:
    """Return the contacts with an event that was received in this time, of these names (None: all)."""


@query
async def find_created(tx: Transaction, org_id: int, low: datetime, high: datetime, limit: int) -> list[Uuid]:
    """Return the contacts that were created in this time."""


@query
async def find_related(tx: Transaction, org_id: int, ids: Sequence[Uuid]) -> list[Uuid]:
    """Return these contacts, those that lost an identifier to them, and all that are merged with any of them."""


@query
async def find_merged(tx: Transaction, org_id: int, ids: Sequence[Uuid]) -> list[Uuid]:
    """Return the contacts that these contacts have been merged into, and those that have been merged into these."""


# --- Members

_BLOCK_IDS = 10_000
ContactsChanged: TypeAlias = Callable[[list[str]], Awaitable[None]]


class SegmentKey(msgspec.Struct, frozen=True):
    org_id: int
    segment: str


class MatchedMembers(msgspec.Struct, frozen=True):
    """How many of the copied ids are contacts (`size`), and how many are not, or are erased (`unknown`)."""

    size: int
    unknown: int


async def copy_candidates(tx: Transaction, blocks: AsyncIterator[bytes]) -> None:
    """Copy the ids that a query returned, one per line, into a temporary table."""
    await tx.execute(_SQL["open_candidates"])
    async with tx.cursor() as cursor, cursor.copy(_SQL["copy_candidates"]) as copy:
        async for block in blocks:
            await copy.write(block)


async def resolve_members(tx: Transaction, org_id: int) -> MatchedMembers:
    """Resolve the copied ids to contacts of the organization; merged contacts count as the kept one."""
    await _analyze_candidates(tx)
    await _open_wanted(tx)
    matched = await _resolve_members(tx, org_id)
    await _analyze_wanted(tx)  # autovacuum does not see temporary tables
    return matched


@query
async def _resolve_members(tx: Transaction, org_id: int) -> MatchedMembers: ...


@query
async def sample_members(tx: Transaction, limit: int) -> list[str]:
    """Return the first ids of the resolved contacts."""


async def compare_members(tx: Transaction, key: SegmentKey) -> MembersChange:
    """Count the contacts that would enter and leave."""
    # A new segment has no statistics: the planner would expect no members, and scan `wanted` for each of them.
    await _join_by_hash(tx)
    return await _compare_members(tx, key)


@query
async def _compare_members(tx: Transaction, key: SegmentKey) -> MembersChange: ...


async def change_members(tx: Transaction, key: SegmentKey, at: datetime, left: ContactsChanged) -> MembersChange:
    """Make the resolved contacts the members; `left` gets the ids of those that leave, block by block."""
    await _join_by_hash(tx)
    if entered := await enter_members(tx, key, at):
        await note_entered(tx, key.org_id, key.segment, at, await transaction_offset(tx))
    return MembersChange(entered, await _drop_leaving(tx, key, at, left))


@query
async def enter_members(tx: Transaction, key: SegmentKey, at: datetime) -> RowCount: ...


async def change_some_members(
    tx: Transaction, key: SegmentKey, at: datetime, contact_ids: Collection[str], left: ContactsChanged
) -> MembersChange:
    """Make those of these contacts that are resolved members, and the others not; other members stay as they are."""
    unwanted = sorted(set(contact_ids).difference(await list_wanted(tx)))
    if entered := await enter_wanted(tx, key, at):
        await note_entered(tx, key.org_id, key.segment, at, await transaction_offset(tx))
    dropped = 0
    for first in range(0, len(unwanted), _BLOCK_IDS):
        dropped += await _drop(tx, key, at, unwanted[first : first + _BLOCK_IDS], left)
    return MembersChange(entered, dropped)


@query
async def enter_wanted(tx: Transaction, key: SegmentKey, at: datetime) -> RowCount: ...


@query
async def list_wanted(tx: Transaction) -> list[Uuid]: ...


async def read_entered(tx: Transaction, key: SegmentKey, at: datetime) -> AsyncIterator[list[str]]:
    """Yield the members that entered at this moment, block by block."""
    after = "00000000-0000-0000-0000-000000000000"
    while block := await list_entered(tx, key, at, after, _BLOCK_IDS):
        yield block
        after = block[-1]


@query
async def list_entered(tx: Transaction, key: SegmentKey, at: datetime, after: Uuid, limit: int) -> list[Uuid]: ...


@query
async def count_members(tx: Transaction, key: SegmentKey) -> int: ...


async def remove_all_members(tx: Transaction, key: SegmentKey, at: datetime, key_id: Uuid) -> None:
    """Remove all members of a deleted segment, except those that another transaction is changing now."""
    await _open_wanted(tx)
    await _join_by_hash(tx)
    await _drop_leaving(tx, key, at, key_id=key_id)


async def _drop_leaving(
    tx: Transaction, key: SegmentKey, at: datetime, left: ContactsChanged | None = None, key_id: Uuid | None = None
) -> int:
    dropped = 0
    async with tx.cursor("leaving") as leaving:  # server-side, so that only one block of ids is held here
        await leaving.execute(_SQL["list_leaving"], msgspec.structs.asdict(key))
        while rows := await leaving.fetchmany(_BLOCK_IDS):
            dropped += await _drop(tx, key, at, [contact_id for (contact_id,) in rows], left, key_id)
    return dropped


async def _drop(
    tx: Transaction,
    key: SegmentKey,
    at: datetime,
    ids: list[str],
    left: ContactsChanged | None,
    key_id: Uuid | None = None,
) -> int:
    ids = await drop_members(tx, key, ids)
    if ids:
        await note_left(tx, key.org_id, key.segment, ids, at, key_id, await transaction_offset(tx))
        if left is not None:
            await left(ids)
    return len(ids)


@query
async def drop_members(tx: Transaction, key: SegmentKey, ids: list[Uuid]) -> list[str]:
    """Delete members, except those that another transaction is changing now; return the ids of the deleted ones."""


@query
async def repair_members(tx: Transaction, key: SegmentKey, since: datetime, at: datetime, offset: int) -> int:
    """Apply erasures and merges committed since a time; return the change in size. Needs `locks.hold_members`."""


@query
async def clear_members(tx: Transaction, key: SegmentKey, at: datetime, key_id: Uuid, offset: int) -> None:
    """Remove the remaining members of an archived segment. Needs `locks.hold_members`."""


async def _prepare(tx: Transaction) -> None: ...


_analyze_candidates = query(_prepare, "analyze_candidates")
_open_wanted = query(_prepare, "open_wanted")
_empty_wanted = query(_prepare, "empty_wanted")
_analyze_wanted = query(_prepare, "analyze_wanted")
_join_by_hash = query(_prepare, "join_by_hash")


# --- Audiences that arrive in parts


@query
async def add_audience_part(tx: Transaction, org_id: int, segment_id: Uuid) -> None:
    """Keep the resolved contacts as one part of an audience."""


async def use_audience_parts(tx: Transaction, org_id: int, segment_id: str) -> int:
    """Resolve all kept parts into the wanted contacts, delete the parts, and return the number of contacts."""
    await _empty_wanted(tx)
    size = await _use_audience_parts(tx, org_id, segment_id)
    await _analyze_wanted(tx)
    await delete_audience_parts(tx, org_id, segment_id)
    return size


@query
async def _use_audience_parts(tx: Transaction, org_id: int, segment_id: Uuid) -> RowCount: ...


@query
async def delete_audience_parts(tx: Transaction, org_id: int, segment_id: Uuid) -> None: ...
