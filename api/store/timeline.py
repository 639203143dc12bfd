"""What happened to one contact, newest first: the statements of `sql/queries/timeline.sql`."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from api.store.database import Transaction
from api.store.erasure import Cursor, Subject
from api.store.statements import load

END: Cursor = (datetime(9999, 1, 1, tzinfo=UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff")

_SQL = load("timeline")


class Traces(msgspec.Struct, frozen=True):
    """How many rows there are about a contact."""

    events: int
    entries: int
    messages: int
    conflicts: int


class EventRow(msgspec.Struct, frozen=True):
    """An event; `payload` is JSON text."""

    created_at: datetime
    id: str
    event: str
    occurred_at: datetime
    payload: bytes
    idempotency_key: str


class EntryRow(msgspec.Struct, frozen=True):
    """An entry, with the names of its automation and event."""

    created_at: datetime
    id: str
    automation_id: str
    automation: str
    automation_version: int | None
    event_id: str
    event: str | None
    state: str
    outcome: str | None


class MessageRow(msgspec.Struct, frozen=True):
    """A message, and why it stands where it does, when something went wrong."""

    created_at: datetime
    id: str
    automation_id: str
    automation: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    subject: str | None
    body: str | None
    sent_at: datetime | None
    delivered_at: datetime | None
    reason: str | None


class ConflictRow(msgspec.Struct, frozen=True):
    """An identifier that pointed elsewhere when an event of `contact_id` brought it."""

    created_at: datetime
    id: str
    event_id: str
    contact_id: str
    other_contact_id: str | None
    kind: int
    outcome: str
    resolved_by: str | None


class MergeRow(msgspec.Struct, frozen=True):
    """A contact that was absorbed, and when that was taken back."""

    created_at: datetime
    id: str
    absorbed_id: str
    undone_at: datetime | None


class LogRow(msgspec.Struct, frozen=True):
    """A log of a chain; `args` is JSON text."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    args: bytes
    removed: bool


Row = EventRow | EntryRow | MessageRow | ConflictRow | MergeRow | LogRow

Happening: TypeAlias = Literal["event", "entry", "message", "conflict", "merge", "log"]

_READ: Mapping[Happening, tuple[str, type[Row]]] = {
    "event": ("timeline_events", EventRow),
    "entry": ("timeline_entries", EntryRow),
    "message": ("timeline_messages", MessageRow),
    "conflict": ("timeline_conflicts", ConflictRow),
    "merge": ("timeline_merges", MergeRow),
    "log": ("timeline_logs", LogRow),
}
HAPPENINGS = tuple(_READ)


async def count_traces(tx: Transaction, who: Subject) -> Traces:
    """Return how many rows there are about a contact."""
    row = await (await tx.execute(_SQL["count_traces"], msgspec.structs.asdict(who))).fetchone()
    assert row is not None
    return Traces(*row)


async def happened(
    tx: Transaction, who: Subject, kinds: Collection[Happening], before: Cursor, most: int
) -> Sequence[Row]:
    """Return the newest rows of some kinds about a contact before a moment, newest first."""
    at, row_id = before
    values = {**msgspec.structs.asdict(who), "before_at": at, "before_id": row_id, "most": most}
    found: list[Row] = []
    for name, kind in [_READ[each] for each in kinds]:
        found += [kind(*row) async for row in await tx.execute(_SQL[name], values)]
    return sorted(found, key=lambda row: (row.created_at, row.id), reverse=True)[:most]
