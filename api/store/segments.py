"""Segments in Postgres: the statements of `sql/queries/segments.sql`."""

from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from api.store.database import Transaction
from api.store.locks import REFRESHING, try_turn
from api.store.statements import load

_SQL = load("segments")
_KEPT = timedelta(days=400)

Kind: TypeAlias = Literal["query", "audience"]


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment as stored. `params` and `provenance` are JSON text, addresses sealed; `created_by`, `updated_by` are keys."""

    org_id: int
    id: str
    name: str
    kind: Kind
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
    """What a segment begins with; `params` and `provenance` are JSON text."""

    org_id: int
    id: str
    name: str
    kind: Kind
    sql: str | None
    params: str | None
    every_seconds: int | None
    provenance: str
    key_id: str
    at: datetime


class SizeRow(msgspec.Struct, frozen=True):
    """How large a segment was after a change, and by how many it changed."""

    at: datetime
    size: int
    entered: int
    departed: int


class Refreshed(msgspec.Struct, frozen=True):
    """How a refresh ended: the members there are, who came and went, and when to look again."""

    size: int
    entered: int
    departed: int
    at: datetime
    due_at: datetime | None


async def insert_segment(tx: Transaction, new: NewSegment) -> SegmentRow | None:
    """Store a new segment and return it, None when there is one of that name."""
    return await _segment(tx, "insert_segment", msgspec.structs.asdict(new))


async def find_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None:
    """Return the segment of a name."""
    return await _segment(tx, "find_segment", {"org_id": org_id, "name": name})


async def lock_segment(tx: Transaction, org_id: int, name: str) -> SegmentRow | None:
    """Return the segment of a name, which nobody else changes or refreshes until this transaction ends."""
    return await _segment(tx, "lock_segment", {"org_id": org_id, "name": name})


async def list_segments(tx: Transaction, org_id: int) -> list[SegmentRow]:
    """Return all segments by name."""
    return [SegmentRow(*row) async for row in await tx.execute(_SQL["list_segments"], {"org_id": org_id})]


async def list_daily_sizes(tx: Transaction, org_id: int, now: datetime, days: int) -> dict[str, list[int | None]]:
    """Return by segment how large it was on each of the last days, oldest first; None before it was there."""
    values = {"org_id": org_id, "now": now, "days": days}
    return {row[0]: row[1] async for row in await tx.execute(_SQL["list_daily_sizes"], values)}


async def list_sizes(tx: Transaction, row: SegmentRow, most: int) -> list[SizeRow]:
    """Return how large a segment was after each of its newest changes, newest first."""
    values = {"org_id": row.org_id, "id": row.id, "most": most}
    return [SizeRow(*each) async for each in await tx.execute(_SQL["list_sizes"], values)]


async def write_segment(tx: Transaction, row: SegmentRow, key_id: str, at: datetime) -> None:
    """Change what defines a locked segment."""
    values = {
        **_only(row, "org_id", "id", "sql", "every_seconds", "revision", "refreshed_at", "due_at"),
        "params": None if row.params is None else row.params.decode(),
        "provenance": row.provenance.decode(),
    }
    await tx.execute(_SQL["write_segment"], {**values, "key_id": key_id, "at": at})


async def archive_segment(tx: Transaction, row: SegmentRow, key_id: str, at: datetime) -> None:
    """Put a locked segment away."""
    await tx.execute(_SQL["archive_segment"], {"org_id": row.org_id, "id": row.id, "key_id": key_id, "at": at})


async def record_refresh(tx: Transaction, row: SegmentRow, refreshed: Refreshed) -> None:
    """Note who is in a locked segment now."""
    await tx.execute(_SQL["record_refresh"], {**_only(row, "org_id", "id"), **msgspec.structs.asdict(refreshed)})


async def record_failure(tx: Transaction, row: SegmentRow, error: str, at: datetime, due_at: datetime) -> None:
    """Note why a refresh failed, unless somebody else has refreshed, changed or taken the segment since."""
    values = {**_only(row, "org_id", "id", "lease_token"), "error": error, "at": at, "due_at": due_at}
    await tx.execute(_SQL["record_failure"], values)


async def put_off(tx: Transaction, row: SegmentRow, at: datetime, due_at: datetime, error: str | None) -> None:
    """Look at a segment again later; `error` says, if it is late, what it waits for."""
    values = {**_only(row, "org_id", "id", "lease_token"), "error": error, "at": at, "due_at": due_at}
    await tx.execute(_SQL["put_off"], values)


async def correct_size(tx: Transaction, row: SegmentRow, by: int) -> None:
    """Count members that went or came after the size was noted."""
    await tx.execute(_SQL["correct_size"], {**_only(row, "org_id", "id"), "by": by})


async def organizations_due(tx: Transaction, now: datetime) -> list[int]:
    """Return organizations with a segment to refresh, in the order of their turns."""
    return [row[0] async for row in await tx.execute(_SQL["organizations_due"], {"now": now})]


async def claim_due(tx: Transaction, org_id: int, now: datetime, until: datetime) -> SegmentRow | None:
    """Take the segment of an organization that has been due longest; None: somebody else has taken it, or another of them."""
    if not await try_turn(tx, REFRESHING, org_id):
        return None
    return await _segment(tx, "claim_due", {"org_id": org_id, "now": now, "until": until})


async def published_graphs(tx: Transaction, org_id: int) -> list[tuple[str, bytes]]:
    """Return names and live graphs, as JSON text, of automations that speak of segments."""
    return [(row[0], row[1]) async for row in await tx.execute(_SQL["published_graphs"], {"org_id": org_id})]


async def forget_sizes(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete sizes that are older than 400 days; return how many."""
    cursor = await tx.execute(_SQL["forget_sizes"], {"org_id": org_id, "before": now - _KEPT, "most": most})
    return cursor.rowcount


async def _segment(tx: Transaction, name: str, values: dict[str, Any]) -> SegmentRow | None:
    row = await (await tx.execute(_SQL[name], values)).fetchone()
    return None if row is None else SegmentRow(*row)


def _only(row: SegmentRow, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
