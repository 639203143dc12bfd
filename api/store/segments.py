"""Segments: their definitions, their refreshes, and their members.

A refresh copies the ids that a query returns into a temporary table, block by block, resolves them to contacts in a
second one (`wanted`), and makes the members equal to it, all in one transaction. This process holds at most one block
of ids at a time.
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from api.store.database import Transaction, load
from api.store.locks import REFRESHING, try_turn

_SQL = load("segments")

SegmentKind: TypeAlias = Literal["query", "audience"]


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
    params: bytes | None
    every_seconds: int | None
    provenance: bytes
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


class NewSegment(msgspec.Struct, frozen=True):
    """A segment to create; `params` and `provenance` are JSON text."""

    org_id: int
    id: str
    name: str
    kind: SegmentKind
    sql: str | None
    params: str | None
    every_seconds: int | None
    provenance: str
    key_id: str
    at: datetime


async def insert_segment(tx: Transaction, new: NewSegment) -> SegmentRow | None:
    """Store a new segment and return it; None if the name is taken."""
    return await tx.fetch_one(SegmentRow, _SQL["insert_segment"], msgspec.structs.asdict(new))


async def find_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None:
    return await tx.fetch_one(SegmentRow, _SQL["find_segment"], {"org_id": org_id, "name": name})


async def lock_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None:
    """Return a segment, locked against changes and refreshes until this transaction ends."""
    return await tx.fetch_one(SegmentRow, _SQL["lock_segment"], {"org_id": org_id, "name": name})


async def list_segments(tx: Transaction, org_id: int) -> list[SegmentRow]:
    return await tx.fetch_all(SegmentRow, _SQL["list_segments"], {"org_id": org_id})


async def write_segment(tx: Transaction, row: SegmentRow, key_id: str, at: datetime) -> None:
    """Change the definition of a locked segment."""
    values = {
        **_columns(row, "org_id", "id", "sql", "every_seconds", "revision", "refreshed_at", "due_at"),
        "params": None if row.params is None else row.params.decode(),
        "provenance": row.provenance.decode(),
    }
    await tx.execute(_SQL["write_segment"], {**values, "key_id": key_id, "at": at})


async def archive_segment(tx: Transaction, row: SegmentRow, key_id: str, at: datetime) -> None:
    await tx.execute(_SQL["archive_segment"], {"org_id": row.org_id, "id": row.id, "key_id": key_id, "at": at})


async def find_published_graphs(tx: Transaction, org_id: int) -> list[tuple[str, bytes]]:
    """Return names and published graphs (JSON text) of automations that mention segments."""
    return [(row[0], row[1]) async for row in await tx.execute(_SQL["find_published_graphs"], {"org_id": org_id})]


def _columns(row: SegmentRow, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


# --- Refreshes


class RefreshResult(msgspec.Struct, frozen=True):
    """The result of a refresh: the size, how many contacts entered and left, and when to refresh again."""

    size: int
    entered: int
    departed: int
    at: datetime
    due_at: datetime | None


async def find_organizations_due(tx: Transaction, now: datetime) -> list[int]:
    """Return organizations with a segment to refresh, in the order of their turns."""
    return [row[0] async for row in await tx.execute(_SQL["find_organizations_due"], {"now": now})]


async def claim_due_segment(tx: Transaction, org_id: int, now: datetime, until: datetime) -> SegmentRow | None:
    """Claim the segment that has been due longest, or None if a process is refreshing one of the organization."""
    if not await try_turn(tx, REFRESHING, org_id):
        return None
    return await tx.fetch_one(SegmentRow, _SQL["claim_due_segment"], {"org_id": org_id, "now": now, "until": until})


async def record_refresh(tx: Transaction, row: SegmentRow, result: RefreshResult) -> None:
    """Record the result of refreshing a locked segment."""
    await tx.execute(_SQL["record_refresh"], {**_columns(row, "org_id", "id"), **msgspec.structs.asdict(result)})


async def record_failure(tx: Transaction, row: SegmentRow, error: str, at: datetime, due_at: datetime) -> None:
    """Record why a refresh failed, unless the segment was refreshed, changed or claimed since."""
    values = {**_columns(row, "org_id", "id", "lease_token"), "error": error, "at": at, "due_at": due_at}
    await tx.execute(_SQL["record_failure"], values)


async def postpone_refresh(tx: Transaction, row: SegmentRow, at: datetime, due_at: datetime, error: str | None) -> None:
    """Refresh a segment later; `error` says what a late refresh waits for."""
    values = {**_columns(row, "org_id", "id", "lease_token"), "error": error, "at": at, "due_at": due_at}
    await tx.execute(_SQL["postpone_refresh"], values)


async def correct_size(tx: Transaction, row: SegmentRow, by: int) -> None:
    """Add to the size the members that entered or left after it was recorded."""
    await tx.execute(_SQL["correct_size"], {**_columns(row, "org_id", "id"), "by": by})


# --- Sizes over time

_SIZE_RETENTION = timedelta(days=400)


class SizeRow(msgspec.Struct, frozen=True):
    """The size of a segment after a change, and how many contacts entered and left."""

    at: datetime
    size: int
    entered: int
    departed: int


async def list_daily_sizes(tx: Transaction, org_id: int, now: datetime, days: int) -> dict[str, list[int | None]]:
    """Return the size of each segment on each of the last days, oldest first, by segment id; None before it existed."""
    values = {"org_id": org_id, "now": now, "days": days}
    return {row[0]: row[1] async for row in await tx.execute(_SQL["list_daily_sizes"], values)}


async def list_sizes(tx: Transaction, row: SegmentRow, limit: int) -> list[SizeRow]:
    """Return the sizes of a segment after its newest changes, newest first."""
    return await tx.fetch_all(SizeRow, _SQL["list_sizes"], {"org_id": row.org_id, "id": row.id, "limit": limit})


async def delete_old_sizes(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    cursor = await tx.execute(
        _SQL["delete_old_sizes"], {"org_id": org_id, "before": now - _SIZE_RETENTION, "limit": limit}
    )
    return cursor.rowcount


# --- Members

_BLOCK_IDS = 10_000


class SegmentKey(msgspec.Struct, frozen=True):
    org_id: int
    segment: str


class MatchedMembers(msgspec.Struct, frozen=True):
    """How many of the copied ids are contacts (`size`), and how many are not, or are erased (`unknown`)."""

    size: int
    unknown: int


class MembersChange(msgspec.Struct, frozen=True):
    entered: int
    departed: int


async def copy_candidates(tx: Transaction, blocks: AsyncIterator[bytes]) -> None:
    """Copy the ids that a query returned, one per line, into a temporary table."""
    await tx.execute(_SQL["open_candidates"])
    async with tx.cursor() as cursor, cursor.copy(_SQL["copy_candidates"]) as copy:
        async for block in blocks:
            await copy.write(block)


async def resolve_members(tx: Transaction, org_id: int) -> MatchedMembers:
    """Resolve the copied ids to contacts of the organization; merged contacts count as their survivor."""
    await tx.execute(_SQL["analyze_candidates"])
    await tx.execute(_SQL["open_wanted"])
    row = await (await tx.execute(_SQL["resolve_members"], {"org_id": org_id})).fetchone()
    await tx.execute(_SQL["analyze_wanted"])  # autovacuum does not see temporary tables
    assert row is not None
    unknown, size = row
    return MatchedMembers(size, unknown)


async def sample_members(tx: Transaction, limit: int) -> list[str]:
    """Return the first ids of the resolved contacts."""
    return [row[0] async for row in await tx.execute(_SQL["sample_members"], {"limit": limit})]


async def compare_members(tx: Transaction, key: SegmentKey) -> MembersChange:
    """Count the contacts that would enter and leave."""
    # A new segment has no statistics: the planner would expect no members, and scan `wanted` for each of them.
    await tx.execute(_SQL["join_by_hash"])
    (change,) = await tx.fetch_all(MembersChange, _SQL["compare_members"], msgspec.structs.asdict(key))
    return change


async def change_members(tx: Transaction, key: SegmentKey, at: datetime) -> MembersChange:
    """Make the resolved contacts the members."""
    await tx.execute(_SQL["join_by_hash"])
    entered = (await tx.execute(_SQL["enter_members"], {**msgspec.structs.asdict(key), "at": at})).rowcount
    return MembersChange(entered, await _drop_members(tx, key))


async def count_members(tx: Transaction, key: SegmentKey) -> int:
    return int(await tx.fetch_value(_SQL["count_members"], msgspec.structs.asdict(key)))


async def remove_all_members(tx: Transaction, key: SegmentKey) -> None:
    """Remove all members, except those that another transaction is changing now."""
    await tx.execute(_SQL["open_wanted"])
    await tx.execute(_SQL["join_by_hash"])
    await _drop_members(tx, key)


async def _drop_members(tx: Transaction, key: SegmentKey) -> int:
    values, dropped = msgspec.structs.asdict(key), 0
    async with tx.cursor("leaving") as leaving:  # server-side, so that only one block of ids is held here
        await leaving.execute(_SQL["list_leaving"], values)
        while rows := await leaving.fetchmany(_BLOCK_IDS):
            ids = [contact_id for (contact_id,) in rows]
            dropped += (await tx.execute(_SQL["drop_members"], {**values, "ids": ids})).rowcount
    return dropped


async def repair_members(tx: Transaction, key: SegmentKey, since: datetime) -> int:
    """Apply erasures and merges committed since a time; return the change of the size. Needs `locks.hold_members`."""
    values = {**msgspec.structs.asdict(key), "since": since}
    return int(await tx.fetch_value(_SQL["repair_members"], values))


async def clear_members(tx: Transaction, key: SegmentKey) -> None:
    """Remove the remaining members of an archived segment. Needs `locks.hold_members`."""
    await tx.execute(_SQL["clear_members"], msgspec.structs.asdict(key))


# --- Audiences that arrive in parts


async def add_audience_part(tx: Transaction, org_id: int, segment_id: str) -> None:
    """Keep the resolved contacts as one part of an audience."""
    await tx.execute(_SQL["add_audience_part"], {"org_id": org_id, "segment_id": segment_id})


async def use_audience_parts(tx: Transaction, org_id: int, segment_id: str) -> int:
    """Resolve all kept parts into the wanted contacts, delete the parts, and return the number of contacts."""
    values = {"org_id": org_id, "segment_id": segment_id}
    await tx.execute(_SQL["empty_wanted"])
    size = (await tx.execute(_SQL["use_audience_parts"], values)).rowcount
    await tx.execute(_SQL["analyze_wanted"])
    await tx.execute(_SQL["delete_audience_parts"], values)
    return size


async def delete_audience_parts(tx: Transaction, org_id: int, segment_id: str) -> None:
    await tx.execute(_SQL["delete_audience_parts"], {"org_id": org_id, "segment_id": segment_id})
