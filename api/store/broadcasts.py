"""Broadcasts: planning them, and starting their contacts page by page."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction, load
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.responses import BroadcastPreview, BroadcastState

_UNSENT_RETENTION = timedelta(days=30)

# --- Planning


class BroadcastAutomation(msgspec.Struct, frozen=True):
    """The automation of a broadcast. `type`: of its published trigger, empty if nothing is published."""

    version: int | None
    activation: int
    active: bool
    paused: bool
    type: str


class BroadcastRow(msgspec.Struct, frozen=True):
    """A broadcast as stored.

    `segment` is empty for all contacts. `entered`, `departed`: after the `watermark`, until it started. `last_start`:
    up to it entries are made. `reason`: why it was stopped. `scheduled`: it is a run of a schedule.
    """

    org_id: int
    id: Uuid
    automation_id: Uuid
    segment: str
    at: datetime
    state: BroadcastState
    reason: str | None
    contacts: int
    watermark: datetime
    entered: int | None
    departed: int | None
    entries: int
    last_start: Uuid | None
    scheduled: bool
    created_at: datetime
    created_by: Uuid | None
    started_at: datetime | None
    ended_at: datetime | None


@query
async def find_broadcast_automation(
    tx: Transaction, org_id: int, automation_id: Uuid
) -> BroadcastAutomation | None: ...


@query
async def count_recipients(
    tx: Transaction, org_id: int, segment: str, limit: int, now: datetime
) -> BroadcastPreview: ...


@query
async def list_newest_recipients(tx: Transaction, org_id: int, segment: str, limit: int) -> list[Uuid]: ...


class NumberedNeed(msgspec.Struct, frozen=True):
    """A value that a step needs from contacts in `segments`; an empty `path` counts them by their locales."""

    number: int
    path: tuple[str, ...]
    segments: tuple[str, ...]


class MissingCount(msgspec.Struct, frozen=True):
    """For a locale and a need: how many contacts lack the value, and how many were examined."""

    number: int
    locale: str | None
    missing: int
    sampled: int


@query
async def count_missing(
    tx: Transaction, org_id: int, segment: str, locale_attribute: str, needs: Json, limit: int
) -> list[MissingCount]: ...


@query
async def insert_broadcast(
    tx: Transaction,
    org_id: int,
    broadcast_id: Uuid,
    automation_id: Uuid,
    segment: str,
    at: datetime,
    contacts: int,
    watermark: datetime,
    now: datetime,
    key_id: Uuid | None,
) -> BroadcastRow: ...


@query
async def find_broadcast(tx: Transaction, org_id: int, broadcast_id: Uuid) -> BroadcastRow | None: ...


@query
async def lock_broadcast(tx: Transaction, org_id: int, broadcast_id: Uuid) -> BroadcastRow | None: ...


@query
async def list_broadcasts(tx: Transaction, org_id: int, before: Uuid | None, limit: int) -> list[BroadcastRow]: ...


@query
async def stop_broadcasts(tx: Transaction, org_id: int, automation_id: Uuid, reason: str, now: datetime) -> None: ...


@query
async def find_planned_automations(tx: Transaction, org_id: int, segment: str) -> list[str]:
    """Return the names of automations with a broadcast to a segment that has not started."""


# --- Sending


@query
async def find_due_broadcasts(tx: Transaction, state: BroadcastState, now: datetime) -> list[tuple[int, str]]:
    """Return (organization, broadcast) pairs that are due, in one state."""


@query
async def claim_broadcast(tx: Transaction, org_id: int, broadcast_id: Uuid) -> BroadcastRow | None:
    """Return a broadcast that has started and not ended, locked; None if another process has it."""


async def read_recipients(tx: Transaction, row: BroadcastRow, limit: int) -> AsyncIterator[list[tuple[Uuid, bool]]]:
    """Yield the recipients of a broadcast in pages, each with whether it entered after the watermark."""
    async with tx.cursor("recipients") as cursor:
        values = {"org_id": row.org_id, "segment": row.segment, "watermark": row.watermark}
        await cursor.execute(load("broadcasts")["read_recipients"], values)
        while page := await cursor.fetchmany(limit):
            yield page


@query
async def add_recipients(
    tx: Transaction,
    row: BroadcastRow,
    event: str,
    first_at: datetime,
    pace: int,
    number: int,
    contact_ids: Sequence[Uuid],
) -> None:
    """Store the starts of the recipients that follow the first `number` ones."""


@query
async def list_next_starts(tx: Transaction, row: BroadcastRow, limit: int) -> list[Uuid]: ...


@query
async def list_separated_starts(tx: Transaction, row: BroadcastRow) -> list[Uuid]:
    """Return the starts of contacts whose merge was undone after the broadcast started."""


@query
async def add_broadcast_entries(
    tx: Transaction, row: BroadcastRow, start_ids: Sequence[Uuid], first_id: Uuid, automation: BroadcastAutomation
) -> int:
    """Make entries of starts of a broadcast that have none; return their number."""


@query
async def write_broadcast(tx: Transaction, row: BroadcastRow) -> None: ...


@query
async def delete_unsent_starts(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _UNSENT_RETENTION
) -> RowCount:
    """Delete the starts of which a stopped broadcast made no entry."""


# --- Results


class BroadcastEntry(msgspec.Struct, frozen=True):
    """An entry of a broadcast, with the start that made it (received `at`)."""

    contact_id: Uuid
    event_id: Uuid
    at: datetime
    state: str
    held_out: bool
    admitted: bool
    id: Uuid


class MessageCount(msgspec.Struct, frozen=True):
    """Messages of one step with the same status, feedback, and cause for which they were skipped."""

    node_id: str
    channel: str
    status: str
    feedback: str | None
    cause: str | None
    messages: int
    clicked: int


@query
async def list_broadcast_entries(
    tx: Transaction, row: BroadcastRow, after: Uuid | None, limit: int
) -> list[BroadcastEntry]:
    """Return the next entries after the start `after`, in the order of the starts."""


@query
async def count_messages_of_entries(tx: Transaction, org_id: int, entry_ids: Sequence[Uuid]) -> list[MessageCount]: ...


# --- Schedules


class ScheduleRow(msgspec.Struct, frozen=True):
    """An automation that starts from a schedule; its runs up to `planned_until` are planned."""

    org_id: int
    automation_id: Uuid
    trigger_spec: Json
    planned_until: datetime


@query
async def list_schedules(tx: Transaction) -> list[ScheduleRow]: ...


@query
async def take_run(tx: Transaction, row: ScheduleRow, at: datetime) -> bool:
    """Record that the runs up to `at` are planned; False if another process has done that."""
