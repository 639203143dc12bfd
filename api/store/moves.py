"""Moves of waiting entries to another version of their automation."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.query import Json, Uuid, call, query
from workbench.language.responses import EntryMoveView, MovedEntryView, MoveState, RefusedEntryView
from workbench.language.run import State

# --- Moves


class MoveRow(msgspec.Struct, frozen=True):
    """A move of entries to `version` as stored. `mode`: as in a publication, JSON.

    `after`: the last entry of the latest page. `patient_until`: until then the move comes back to entries that an
    engine is working on.
    """

    org_id: int
    id: Uuid
    automation_id: Uuid
    version: int
    mode: Json
    state: MoveState
    after: Uuid | None
    patient_until: datetime
    created_at: datetime
    created_by: Uuid | None
    ended_at: datetime | None


class MoveCounts(msgspec.Struct, frozen=True):
    entries: int
    moved: int
    refused: int
    moved_back: int
    kept: int


@query
async def insert_move(
    tx: Transaction,
    org_id: int,
    move_id: Uuid,
    automation_id: Uuid,
    version: int,
    mode: Json,
    patient_until: datetime,
    now: datetime,
    key_id: Uuid | None,
) -> MoveRow: ...


@query
async def find_move(tx: Transaction, org_id: int, automation_id: Uuid, move_id: Uuid) -> MoveRow | None: ...


@query
async def list_moves(tx: Transaction, org_id: int, automation_id: Uuid, limit: int) -> list[MoveRow]: ...


@query
async def lock_move(tx: Transaction, org_id: int, move_id: Uuid) -> MoveRow | None: ...


@query
async def find_open_moves(tx: Transaction, limit: int) -> list[tuple[int, str, str]]:
    """Return (organization, automation, move) of moves that are not complete."""


@query
async def write_move(tx: Transaction, row: MoveRow) -> None: ...


@query
async def count_move(tx: Transaction, org_id: int, move_id: Uuid) -> MoveCounts: ...


@query
async def count_reasons(tx: Transaction, org_id: int, move_id: Uuid, limit: int) -> dict[str, int]: ...


@query
async def list_refused(tx: Transaction, org_id: int, move_id: Uuid, limit: int) -> list[RefusedEntryView]: ...


@query
async def list_moved(tx: Transaction, org_id: int, move_id: Uuid, limit: int) -> list[MovedEntryView]: ...


@query
async def list_entry_moves(tx: Transaction, org_id: int, entry_id: Uuid) -> list[EntryMoveView]:
    """Return the moves of an entry, also those that left it where it was."""


@query
async def list_former_versions(tx: Transaction, org_id: int, automation_id: Uuid, version: int) -> list[int]:
    """Return the versions other than this one that entries run which have not ended."""


# --- Pages


class MovingEntry(msgspec.Struct, frozen=True):
    """An entry of a page. `due_at`: the moment at which it is decided next. `put_back`: until its contact's turn.

    `from_version`, `from_node_id`, `from_step`, `moved_to`: of this move, once it has moved the entry.
    """

    entry_id: Uuid
    automation_id: Uuid
    event_id: Uuid
    event_created_at: datetime
    contact_id: Uuid
    node_id: str | None
    version: int | None
    step: int
    attempts: int
    state: State
    outcome: str | None
    due_at: datetime
    put_back: bool
    since: datetime | None
    since_id: Uuid | None
    activation: int
    from_version: int | None
    from_node_id: str | None
    from_step: int | None
    moved_to: str | None


class EntryPlace(msgspec.Struct, frozen=True):
    """The step at which an entry continues: at once (`is_due`), at `due_at`, or after an event of `awaits`."""

    entry_id: Uuid
    version: int
    node_id: str
    step: int
    due_at: datetime
    awaits: str | None
    is_due: bool


class MovedRow(msgspec.Struct, frozen=True):
    """The move of one entry: its step before and after, with the prediction; or the reason why it stayed."""

    entry_id: Uuid
    from_version: int | None
    from_node_id: str | None
    from_step: int
    node_id: str | None = None
    until: datetime | None = None
    outcome: str | None = None
    next_node_id: str | None = None
    ends: str | None = None
    reason: str | None = None


class MovedBackRow(msgspec.Struct, frozen=True):
    """An entry that was moved back, or the reason why not."""

    entry_id: Uuid
    reason: str | None


@query
async def add_move_entries(tx: Transaction, org_id: int, move_id: Uuid, automation_id: Uuid, version: int) -> None:
    """Fix the entries of a move: those of other versions that have not ended."""


@query
async def list_page(tx: Transaction, org_id: int, move_id: Uuid, after: Uuid, limit: int) -> list[tuple[str, str]]:
    """Return the next entries that are still to be moved, with their contacts."""


@query
async def list_page_back(tx: Transaction, org_id: int, move_id: Uuid, after: Uuid, limit: int) -> list[tuple[str, str]]:
    """Return the next entries that are still to be moved back, with their contacts."""


@query
async def list_waiting_page(
    tx: Transaction, org_id: int, automation_id: Uuid, version: int, limit: int
) -> list[tuple[str, str]]:
    """Return entries of other versions that have not ended, with their contacts."""


@query
async def lock_moving_entries(
    tx: Transaction, org_id: int, move_id: Uuid, entry_ids: Sequence[Uuid]
) -> list[MovingEntry]:
    """Return entries of a move, locked until this transaction ends; their contacts' locks are held."""


@query
async def read_moving_entries(tx: Transaction, org_id: int, entry_ids: Sequence[Uuid]) -> list[MovingEntry]: ...


@query
async def list_passed_nodes(tx: Transaction, org_id: int, entry_ids: Sequence[Uuid]) -> dict[str, list[str]]:
    """Return the nodes at which entries took a step other than waiting or failing, by entry."""


@call
def move_entries(org_id: int, places: Sequence[EntryPlace], now: datetime) -> None:
    """Move locked entries."""


@call
def record_moved(org_id: int, move_id: Uuid, rows: Sequence[MovedRow], now: datetime) -> None: ...


@call
def record_moved_back(org_id: int, move_id: Uuid, rows: Sequence[MovedBackRow], now: datetime) -> None: ...
