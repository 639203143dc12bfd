"""Read the events that go into parts, and keep the list of their files.

A page of events is one row of arrays and joined texts in binary format. Numbers, moments and ids have a fixed width
there, so that numpy reads a column at once, and a text column is its bytes and its lengths. Reading rows one by one
would cost more than all else that a builder does.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from api.store.database import Transaction, load, transaction_offset
from api.store.query import RowCount, Uuid, query

_SQL = load("parts")
LOGS = "logs"
"""The name of the view of logs among the partitions of events."""
FIRST_ID = "00000000-0000-0000-0000-000000000000"
_EPOCH_2000_US = 946_684_800_000_000  # Postgres counts microseconds since the year 2000
_ARRAY_HEADER_BYTES = 20


# --- Progress


class Progress(msgspec.Struct, frozen=True):
    """How far an organization's parts are built: events of transactions with numbers below `closed` are in them.

    `closed_at`: all events that were stored before are among these. `kept_at`: when an engine looked after `folder`.
    `has_logs`: the logs of these transactions are in them; not if a builder of a version without logs was the last.
    """

    closed: int
    buckets: int
    keys: tuple[str, ...]
    folder: Uuid
    system_identifier: int
    kept_at: datetime
    closed_at: datetime | None
    rewritten_at: datetime | None
    problem: str | None
    has_logs: bool


class OrganizationProgress(Progress, frozen=True, kw_only=True):
    org_id: int


@query
async def find_progress(tx: Transaction, org_id: int) -> Progress | None: ...


@query
async def list_progress(tx: Transaction) -> list[OrganizationProgress]: ...


@query
async def begin_parts(tx: Transaction, org_id: int, buckets: int, folder: Uuid, system_identifier: int) -> None: ...


@query
async def keep_folder(tx: Transaction, folder: Uuid | None, at: datetime) -> None: ...


@query
async def list_abandoned(tx: Transaction, folder: Uuid | None, kept_before: datetime) -> list[int]: ...


@query
async def advance_progress(
    tx: Transaction, org_id: int, previous: int, closed: int, keys: Sequence[str], at: datetime | None
) -> RowCount: ...


@query
async def note_logs(tx: Transaction, org_id: int, closed: int) -> None: ...


@query
async def note_rewritten(tx: Transaction, org_id: int, buckets: int, at: datetime) -> None: ...


@query
async def note_problem(tx: Transaction, org_id: int, problem: str) -> None: ...


@query
async def delete_progress(tx: Transaction, org_id: int) -> None: ...


@query
async def _find_oldest_open(tx: Transaction, added: int) -> tuple[int, int] | None: ...


async def find_oldest_open(tx: Transaction) -> tuple[int, int]:
    """Return the number below which all transactions had ended in this snapshot, and the id of the cluster."""
    found = await _find_oldest_open(tx, await transaction_offset(tx))
    assert found is not None
    return found


@query
async def list_unbuilt(tx: Transaction) -> list[int]: ...


@query
async def find_due(
    tx: Transaction, folder: Uuid | None, oldest: int, events: int, hour_ago: datetime, removed_before: datetime
) -> list[int]: ...


@query
async def find_rewrites_due(
    tx: Transaction, folder: Uuid | None, rewritten_before: datetime, many: int
) -> list[int]: ...


@query
async def count_tail(tx: Transaction, org_id: int, closed: int, limit: int) -> int: ...


class ProgressSummary(msgspec.Struct, frozen=True):
    """`failing`: the organizations whose last build failed. `behind_since`: when the first event of a tail arrived."""

    failing: int
    behind_since: datetime | None


@query
async def summarize_progress(tx: Transaction) -> ProgressSummary: ...


@query
async def find_held_event(tx: Transaction, oldest: int) -> datetime | None: ...


@query
async def find_oldest_transaction(tx: Transaction) -> datetime | None: ...


@query
async def find_overdue(tx: Transaction) -> datetime | None: ...


class TouchedSummary(msgspec.Struct, frozen=True):
    """The number of touched contacts; `erased_at`: when the first of those that are erased was erased."""

    contacts: int
    erased_at: datetime | None


@query
async def count_touched(tx: Transaction, org_id: int) -> TouchedSummary: ...


@query
async def count_events(tx: Transaction, org_id: int) -> int: ...


# --- Contacts and names


@query
async def number_contacts(tx: Transaction, org_id: int, limit: int) -> RowCount: ...


@query
async def has_unnumbered_contacts(tx: Transaction, org_id: int) -> bool: ...


@query
async def list_event_numbers(tx: Transaction, org_id: int) -> dict[str, int]: ...


@query
async def add_event_numbers(
    tx: Transaction, org_id: int, numbers: Collection[int], events: Collection[str]
) -> None: ...


# --- Events


class MissingContactError(Exception):
    """Events belong to a contact that has no row."""


class RowKind(NamedTuple):
    """Which rows are read: events, or logs of chains. Without `payloads`, these are empty texts."""

    logs: bool = False
    payloads: bool = True


EVENT_ROWS, LOG_ROWS = RowKind(), RowKind(logs=True)


class EventPage(msgspec.Struct, frozen=True):
    """Events in columns, or logs of chains. Moments are microseconds since the epoch."""

    contacts: np.ndarray
    occurred_at: np.ndarray
    created_at: np.ndarray
    stored_in: np.ndarray
    ids: pa.FixedSizeBinaryArray
    events: pa.StringArray
    payloads: pa.StringArray
    logs: bool

    def __len__(self) -> int:
        return len(self.contacts)

    @property
    def last_id(self) -> str:
        """The greatest id: after a join, the events of a page are in any order."""
        return str(UUID(bytes=max(self.ids.to_pylist())))


@query
async def find_page_end(tx: Transaction, org_id: int, since: int, until: int, rows: int, logs: bool) -> int | None: ...


async def read_page(tx: Transaction, org_id: int, since: int, until: int, kind: RowKind) -> EventPage | None:
    """Return the events of the transactions with since <= number < until; None if these have no events."""
    return await _read(tx, "read_page", {"org_id": org_id, "since": since, "until": until}, kind)


async def read_part_of_transaction(
    tx: Transaction, org_id: int, since: int, limit: int, kind: RowKind, after: str = FIRST_ID
) -> EventPage | None:
    """Return the next events of one transaction; those after them have greater ids."""
    values = {"org_id": org_id, "since": since, "limit": limit, "after": after}
    return await _read(tx, "read_part_of_transaction", values, kind)


async def read_contacts(
    tx: Transaction,
    org_id: int,
    contact_ids: Sequence[str],
    until: int,
    limit: int,
    kind: RowKind,
    after: str = FIRST_ID,
) -> EventPage | None:
    """Return the next events of contacts from transactions below `until`; those after them have greater ids."""
    values = {"org_id": org_id, "contact_ids": list(contact_ids), "until": until, "limit": limit, "after": after}
    return await _read(tx, "read_contacts", values, kind)


async def _read(tx: Transaction, statement: str, values: Mapping[str, Any], kind: RowKind) -> EventPage | None:
    await tx.begin()
    cursor = await tx.cursor(binary=True).execute(_SQL[statement].encode(), {**values, **kind._asdict()})
    result = cursor.pgresult
    assert result is not None
    cells = [result.get_value(0, column) for column in range(result.nfields)]
    contacts, occurred_at, created_at, stored_in, ids, events, event_lengths, payloads = cells
    if contacts is None:
        return None
    if int.from_bytes(contacts[4:8], "big"):  # the array has nulls
        raise MissingContactError("some events belong to contacts that have no row in the table contacts")
    raw_ids = fixed_width(ids, "V16").tobytes()
    return EventPage(
        fixed_width(contacts, ">i8").astype(np.int64),
        fixed_width(occurred_at, ">i8").astype(np.int64) + _EPOCH_2000_US,
        fixed_width(created_at, ">i8").astype(np.int64) + _EPOCH_2000_US,
        fixed_width(stored_in, ">i8").astype(np.int64),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(raw_ids) // 16, [None, pa.py_buffer(raw_ids)]),
        cut_texts(events or b"", fixed_width(event_lengths, ">i4")),
        _lines(payloads or b""),
        kind.logs,
    )


def fixed_width(array: bytes | None, element: str) -> np.ndarray:
    """Return the elements of an array without nulls: each is preceded by its length."""
    return np.frombuffer(array or b"", [("length", ">i4"), ("value", element)], offset=_ARRAY_HEADER_BYTES)["value"]


def cut_texts(joined: bytes, lengths: np.ndarray) -> pa.StringArray:
    """Return the texts that are joined, by their lengths in bytes."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(joined))


def _lines(joined: bytes) -> pa.StringArray:
    """Return the lines of a text. Without the line breaks, because readers look at the bytes of a whole column."""
    breaks = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord("\n"))
    return cut_texts(joined.replace(b"\n", b""), np.diff(breaks, prepend=-1, append=len(joined)) - 1)


@query
async def list_months(tx: Transaction) -> set[str]: ...


# --- Touched contacts


class TouchedContact(msgspec.Struct, frozen=True):
    """A contact with outdated events in parts.

    `number`: of the contact in parts. `marked_in`: the last transaction that marked the contact.
    """

    contact_id: Uuid
    number: int | None
    marked_in: int
    erased: bool


@query
async def list_touched(tx: Transaction, org_id: int) -> list[TouchedContact]: ...


@query
async def _clear_touched(tx: Transaction, org_id: int, contact_ids: list[Uuid], marks: list[int]) -> None: ...


@query
async def clear_all_touched(tx: Transaction, org_id: int) -> None: ...


@query
async def list_marked_without_parts(tx: Transaction) -> list[int]: ...


async def clear_touched(tx: Transaction, org_id: int, contacts: Collection[TouchedContact]) -> None:
    """Remove the marks of contacts that were not marked again since they were read."""
    await _clear_touched(
        tx, org_id, [contact.contact_id for contact in contacts], [contact.marked_in for contact in contacts]
    )


# --- The list of files


class PartFile(msgspec.Struct, frozen=True):
    """A file of events. `month`: their partition, like `2026_11`, or `other`; `LOGS` for logs of chains.

    `first_at`, `last_at`: when the first and the last of them occurred, in microseconds since the epoch.
    """

    file: Uuid
    bucket: int
    month: str
    rows: int
    size: int
    first_at: int
    last_at: int
    sha256: bytes

    @property
    def is_logs(self) -> bool:
        return self.month == LOGS


class PartsSummary(msgspec.Struct, frozen=True):
    """The number of an organization's files, their events and bytes; `removed` files are to be deleted."""

    files: int
    rows: int
    size: int
    removed: int


@query
async def list_parts(tx: Transaction, org_id: int) -> list[PartFile]: ...


@query
async def list_new(tx: Transaction, org_id: int, since: datetime) -> set[str]: ...


@query
async def find_part(tx: Transaction, org_id: int, file: Uuid) -> PartFile | None: ...


@query
async def add_parts(tx: Transaction, org_id: int, parts: list[PartFile], at: datetime) -> None: ...


@query
async def remove_parts(tx: Transaction, org_id: int, files: Collection[Uuid], at: datetime) -> RowCount: ...


@query
async def remove_all_parts(tx: Transaction, org_id: int, at: datetime) -> RowCount: ...


@query
async def remove_dropped_months(tx: Transaction, org_id: int, at: datetime) -> RowCount: ...


@query
async def list_files(tx: Transaction, org_id: int) -> dict[str, datetime | None]: ...


@query
async def delete_removed(tx: Transaction, org_id: int, files: Collection[Uuid]) -> None: ...


@query
async def summarize_parts(tx: Transaction, org_id: int) -> PartsSummary: ...
