"""Merge contacts, and undo merges. The caller holds the locks named in `api/contacts/merge.py`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from api.store.changes import MergeMoment, note_merged, note_record, note_unmerged
from api.store.database import Transaction
from api.store.events import wake_engine
from api.store.query import RowCount, Uuid, query, run
from workbench.language.contact import ContactRecord, IdentifierKey, IdentifierKind

MergePart: TypeAlias = Literal["events", "messages", "entries", "onchain", "starts"]


# --- Contacts and their identifiers


class StoredContact(ContactRecord, frozen=True):
    """A contact as stored, with the id of the contact it was merged into and whether it was erased."""

    merged_into: str | None = None
    erased: bool = False


class RowMove(msgspec.Struct, frozen=True):
    """Rows that move from one contact to another. `origins`: only rows that first belonged to one of these contacts."""

    from_id: Uuid
    to_id: Uuid
    origins: Sequence[Uuid] | None = None


@query
async def find_kept_contact(tx: Transaction, org_id: int, contact_id: Uuid) -> str:
    """Return the contact that this one was merged into, or its own id."""


@query
async def find_stored_contacts(tx: Transaction, org_id: int, ids: Collection[Uuid]) -> dict[str, StoredContact]: ...


async def find_identities(tx: Transaction, org_id: int, ids: Collection[str]) -> dict[IdentifierKey, str]:
    """Return all identifiers of these contacts, each with its owner."""
    return {(kind, digest): owner for kind, digest, owner in await _find_identities(tx, org_id, ids)}


@query
async def _find_identities(
    tx: Transaction, org_id: int, ids: Collection[Uuid]
) -> list[tuple[IdentifierKind, str, str]]: ...


async def find_identifier_owners(
    tx: Transaction, org_id: int, keys: Sequence[IdentifierKey]
) -> dict[IdentifierKey, str]:
    """Return the owners of identifiers; identifiers without an owner are left out."""
    rows = await _find_identifier_owners(tx, org_id, [kind for kind, _ in keys], [digest for _, digest in keys])
    return {(kind, digest): owner for kind, digest, owner in rows}


@query
async def _find_identifier_owners(
    tx: Transaction, org_id: int, kinds: list[IdentifierKind], digests: list[Uuid]
) -> list[tuple[IdentifierKind, str, str]]: ...


async def move_identities(tx: Transaction, org_id: int, keys: Sequence[IdentifierKey], move: RowMove) -> None:
    await _move_identities(tx, org_id, [kind for kind, _ in keys], [digest for _, digest in keys], move)


@query
async def _move_identities(
    tx: Transaction, org_id: int, kinds: list[IdentifierKind], digests: list[Uuid], move: RowMove
) -> None: ...


async def write_contact(
    tx: Transaction, org_id: int, contact_id: str, record: ContactRecord, moment: MergeMoment
) -> None:
    """Write all of a contact except its segments."""
    await note_record(tx, org_id, contact_id, record, moment)
    await _write_contact(tx, org_id, contact_id, record, moment.at)


@query
async def _write_contact(
    tx: Transaction, org_id: int, contact_id: Uuid, record: ContactRecord, at: datetime
) -> None: ...


async def mark_merged(tx: Transaction, org_id: int, absorbed_id: str, keep_id: str, moment: MergeMoment) -> None:
    """Mark a contact, and all contacts that were merged into it, as merged into another one."""
    await note_merged(tx, org_id, absorbed_id, keep_id, moment)
    await _mark_merged(tx, org_id, absorbed_id, keep_id)


@query
async def _mark_merged(tx: Transaction, org_id: int, absorbed_id: Uuid, keep_id: Uuid) -> None: ...


async def unmark_merged(
    tx: Transaction, org_id: int, absorbed_id: str, members: Collection[str], moment: MergeMoment
) -> None:
    """Mark a contact as separate again, together with its `members`."""
    await note_unmerged(tx, org_id, absorbed_id, members, moment)
    await _unmark_merged(tx, org_id, absorbed_id, members)


@query
async def _unmark_merged(tx: Transaction, org_id: int, absorbed_id: Uuid, members: Collection[Uuid]) -> None: ...


@query
async def list_merged_ids(tx: Transaction, org_id: int, contact_id: Uuid) -> list[str]:
    """Return a contact and all contacts that were merged into it, directly or indirectly."""


@query
async def find_memberships(tx: Transaction, org_id: int, contact_id: Uuid) -> dict[str, datetime]:
    """Return the segments of a contact, with the times at which it entered."""


@query
async def join_segments(
    tx: Transaction,
    org_id: int,
    contact_id: Uuid,
    segments: Collection[str],
    entered_at: Collection[datetime],
    moment: MergeMoment,
) -> None:
    """Add a contact to segments, with the given entry times."""


@query
async def leave_segments(
    tx: Transaction, org_id: int, contact_id: Uuid, segments: Collection[str], moment: MergeMoment
) -> None: ...


# --- Merge records


class AbsorbedValues(msgspec.Struct, frozen=True):
    """The attributes, tags and segments (with entry times) that the kept contact took over from an absorbed one."""

    attributes: dict[str, Any]
    tags: tuple[str, ...]
    segments: dict[str, datetime]


class MergeRow(msgspec.Struct, frozen=True):
    """A merge: what the kept contact gained, the identifiers that moved, and what the absorbed contact had."""

    id: Uuid
    keep_id: Uuid
    absorbed_id: Uuid
    gained: ContactRecord
    identities: tuple[IdentifierKey, ...]
    absorbed: AbsorbedValues
    created_at: datetime
    undone_at: datetime | None


@query
async def add_merge(tx: Transaction, org_id: int, row: MergeRow, due_at: datetime) -> None:
    """Record what a merge changed. `due_at`: when to move the rows that the absorbed contact got after the merge."""


@query
async def find_merge(tx: Transaction, org_id: int, merge_id: Uuid) -> MergeRow | None: ...


@query
async def hold_merge(tx: Transaction, org_id: int, merge_id: Uuid) -> MergeRow:
    """Return a merge, locked until commit, so that no other transaction undoes it or moves rows for it."""


@query
async def find_merge_of(tx: Transaction, org_id: int, absorbed_id: Uuid) -> str | None: ...


@query
async def mark_merge_undone(tx: Transaction, org_id: int, merge_id: Uuid, at: datetime, due_at: datetime) -> None:
    """Record that a merge was undone. `due_at`: when to move its rows back."""


@query
async def update_absorbed(tx: Transaction, org_id: int, row: MergeRow) -> None:
    """Record what the kept contact took over from the absorbed one."""


@query
async def resolve_conflicts(tx: Transaction, org_id: int, row: MergeRow) -> None:
    """Mark the conflicts between two contacts as resolved by a merge."""


@query
async def reopen_conflicts(tx: Transaction, org_id: int, merge_id: Uuid) -> None:
    """Mark the conflicts that a merge resolved as open again."""


# --- Moving rows


@query
async def find_due_merges(tx: Transaction, now: datetime, limit: int) -> list[tuple[int, str]]:
    """Return (organization, merge) pairs of merges that are due for another search for rows to move."""


@query
async def schedule_merge(tx: Transaction, org_id: int, merge_id: Uuid, due_at: datetime | None) -> None:
    """Record when to search for rows to move again; None: never."""


async def has_claimed_entries(tx: Transaction, org_id: int, move: RowMove) -> bool:
    """Lock the entries that are to move until commit; return whether a worker holds one of them."""
    return any(await lock_live_entries(tx, org_id, move))


@query
async def lock_live_entries(tx: Transaction, org_id: int, move: RowMove) -> list[bool]: ...


@query
async def move_live_entries(tx: Transaction, org_id: int, move: RowMove) -> None:
    """Move the unfinished entries of a contact to another in one statement, so no decision sees half of them moved."""


async def _move(tx: Transaction, org_id: int, move: RowMove, limit: int) -> RowCount: ...


_MOVE = {part: query(_move, f"move_{part}") for part in get_args(MergePart)}


async def move_rows(tx: Transaction, org_id: int, part: MergePart, move: RowMove, limit: int) -> int:
    """Move the next rows of a contact to another; return how many."""
    return await _MOVE[part](tx, org_id, move, limit)


async def wake_entries_of_contact(tx: Transaction, org_id: int, contact_id: str, at: datetime) -> None:
    """Make the entries of a contact due that wait for events, and notify the engines; the contact's lock is held."""
    if await _wake_entries_of_contact(tx, org_id, contact_id, at):
        await run(tx, wake_engine())


@query
async def _wake_entries_of_contact(tx: Transaction, org_id: int, contact_id: Uuid, at: datetime) -> RowCount: ...
