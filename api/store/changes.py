"""The history of contacts: what their values were, when they changed and by what.

Each change of a value is noted in the transaction that makes it, by a call before the one that writes the contact,
under the lock of the contact. Nothing is noted when a contact is created: the values of a moment are the `old` ones of
the first changes after it, and otherwise those of the contact (`contacts_at` in sql/schema.sql).

`offset`, here and in the statements of other modules that note changes: that of `database.transaction_offset`.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from api.store.database import Transaction
from api.store.entries import TagChange
from api.store.query import JsonTexts, Uuid, call, query
from workbench.language.contact import ContactRecord

CauseKind: TypeAlias = Literal["event", "step", "merge", "import", "person", "refresh"]


class MergeMoment(msgspec.Struct, frozen=True):
    """A merge, and the moment at which it, or its undo, changes contacts."""

    merge_id: Uuid
    at: datetime
    offset: int


# --- Values of contacts


@call
def note_values(
    cause: CauseKind,
    at: datetime,
    offset: int,
    org_ids: Sequence[int],
    contact_ids: Sequence[Uuid],
    fields: Sequence[str],
    old: Sequence[str | None],
    new: Sequence[str | None],
    cause_ids: Sequence[Uuid],
    steps: Sequence[int],
    moments_us: Sequence[int | None],
) -> None:
    """Note values (JSON texts, None: no value)."""


@call
def note_attributes(
    cause: CauseKind,
    at: datetime,
    offset: int,
    org_ids: Sequence[int],
    contact_ids: Sequence[Uuid],
    attributes: JsonTexts,
    cause_ids: Sequence[Uuid],
    steps: Sequence[int] = (),
    earlier: JsonTexts = (),
    moments_us: Sequence[int | None] = (),
) -> None:
    """Note which of these attributes contacts do not have yet. Leave out `earlier`, or give a text for each row."""


@call
def note_tags(
    cause: CauseKind, at: datetime, offset: int, org_id: int, changes: Sequence[TagChange], cause_ids: Sequence[Uuid]
) -> None: ...


@query
async def note_record(
    tx: Transaction, org_id: int, contact_id: Uuid, record: ContactRecord, moment: MergeMoment
) -> None:
    """Note what changes when a merge, or its undo, writes a contact."""


@query
async def note_merged(tx: Transaction, org_id: int, absorbed_id: Uuid, keep_id: Uuid, moment: MergeMoment) -> None:
    """Note that a contact, and all that were merged into it, become part of another one."""


@query
async def note_unmerged(
    tx: Transaction, org_id: int, absorbed_id: Uuid, members: Collection[Uuid], moment: MergeMoment
) -> None:
    """Note that a contact becomes separate again, together with its `members`."""


@query
async def note_opt_outs(
    tx: Transaction,
    org_id: int,
    contact_id: Uuid,
    channels: Collection[str],
    key_id: Uuid | None,
    at: datetime,
    offset: int,
) -> None:
    """Note that a person opts a contact out of these channels only; without a key by the link of an email."""


# --- Members of segments


@query
async def note_entered(tx: Transaction, org_id: int, segment: str, at: datetime, offset: int) -> None:
    """Note the members that entered a segment at this moment."""


@query
async def note_left(
    tx: Transaction, org_id: int, segment: str, ids: list[Uuid], at: datetime, key_id: Uuid | None, offset: int
) -> None:
    """Note contacts that have left a segment; `key_id`: because this key has deleted it."""


# --- Reading


class ChangeRow(msgspec.Struct, frozen=True):
    """A change of a contact; `old` and `new` are JSON texts, None: no value."""

    changed_at: datetime
    contact_id: str
    field: str
    old: msgspec.Raw | None
    new: msgspec.Raw | None
    cause: CauseKind
    cause_id: str | None


class ChangeCursor(msgspec.Struct, frozen=True):
    """The last row of a page."""

    changed_at: datetime
    row_contact: Uuid
    field: str


NEWEST_CHANGE = ChangeCursor(datetime(9999, 1, 1, tzinfo=UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff", "")


@query
async def read_changes(
    tx: Transaction, org_id: int, contact_id: Uuid, before: ChangeCursor, limit: int
) -> list[ChangeRow]:
    """Return the changes of a contact and of those that were merged into it, newest first."""
