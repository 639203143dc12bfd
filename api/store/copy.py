"""Idempotency keys and events of an import, written by COPY in its binary format.

Rows are built when events are read, except for the fields that only their transaction knows. Those stand at the end of
a row (see `sql/queries/copy.sql`): the moment of a key; the contact and the transaction number of an event. Many rows
are built at a time, and fields of a fixed size are filled in byte by byte across all rows: one call per row would cost
more than the row itself.

COPY does not write to tables with row-level security. Keys therefore pass through a temporary table, and events go
directly into the partitions of their months, because only the partitioned table has policies. Postgres reads one block
while we build the next.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
import psycopg
from psycopg import sql

from api.clock import from_us, to_us
from api.store.database import Transaction, TransactionConflictError, is_violation, load
from api.store.query import Call, Rows, plain, statements

_SQL = load("copy")
_CALLS = statements("copy")

# --- Building rows

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"

_EPOCH_US = 946_684_800_000_000  # Postgres counts from the year 2000
_JSONB_VERSION = 1  # precedes the text
_NULL = b"\xff\xff\xff\xff"
_SIXTEEN = b"\0\0\0\x10"
# A row begins with its number of fields, and each field with its length.
_KEY = struct.Struct(">hiqi16si16si16s")
_EVENT = struct.Struct(">hiqi16siqiqiB")
_NUMBER = struct.Struct(">iq").pack
_LENGTH = struct.Struct(">i").pack


def key_rows(
    org_id: int, key_digests: Sequence[bytes], event_ids: Sequence[bytes], body_digests: Sequence[bytes]
) -> list[bytes]:
    """Return the rows of idempotency keys without their times. Rows of one organization sort like their digests."""
    rows = _Rows(_KEY.pack(5, 8, org_id, 16, b"", 16, b"", 16, b""), len(event_ids))
    rows.fill(18, 16, b"".join(key_digests))
    rows.fill(38, 16, b"".join(event_ids))
    rows.fill(58, 16, b"".join(body_digests))
    return rows.parts()


def event_heads(
    org_id: int, event_ids: Sequence[bytes], occurred_at_us: Sequence[int], payloads: Sequence[bytes]
) -> list[bytes]:
    """Return the beginnings of the rows of events, up to their payloads. `created_at` is the time of the event."""
    count = len(event_ids)
    times = struct.pack(f">{count}q", *[at_us - _EPOCH_US for at_us in occurred_at_us])
    rows = _Rows(_EVENT.pack(12, 8, org_id, 16, b"", 8, 0, 8, 0, 0, _JSONB_VERSION), count)
    rows.fill(18, 16, b"".join(event_ids))
    rows.fill(38, 8, times)
    rows.fill(50, 8, times)
    rows.fill(58, 4, struct.pack(f">{count}i", *[len(payload) + 1 for payload in payloads]))
    return rows.parts()


def event_tails(idempotency_keys: Sequence[bytes], names: Sequence[str]) -> list[bytes]:
    """Return the fields after the payloads: key and name. `identifier_fields`, contact and number follow."""
    fields = {name: _text_field(name) for name in set(names)}
    lengths = {length: _LENGTH(length) for length in set(map(len, idempotency_keys))}
    return [lengths[len(key)] + key + fields[name] for key, name in zip(idempotency_keys, names, strict=True)]


def identifier_fields(wallet: str | None, email: str | None, external_id: str | None) -> bytes:
    """Return the identifiers of an event (`email` is sealed), and the length of the contact's id that follows."""
    return b"".join((_text_field(wallet), _text_field(email), _text_field(external_id), _SIXTEEN))


class _Rows:
    """Rows of one size, made as copies of one row."""

    def __init__(self, first: bytes, count: int) -> None:
        self._size = len(first)
        self._bytes = bytearray(first * count)

    def fill(self, offset: int, size: int, values: bytes) -> None:
        """Write one value of `size` bytes into each row, at the same offset."""
        for byte in range(size):
            self._bytes[offset + byte :: self._size] = values[byte::size]

    def parts(self) -> list[bytes]:
        filled, size = bytes(self._bytes), self._size
        return [filled[start : start + size] for start in range(0, len(filled), size)]


def _text_field(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _LENGTH(len(raw)) + raw


# --- Writing rows

_BLOCK_ROWS = 250  # 10 KB or more
_OTHER_MONTHS = "events_other"
_DAY_US = 86_400_000_000
_Part = TypeVar("_Part")

EventParts = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""Columns of events: `event_heads`, payloads, `event_tails`, `identifier_fields`."""

MonthTables = Mapping[str, sql.Identifier]  # by month, such as `2026_11`


class PastRows(msgspec.Struct, frozen=True):
    """Events in columns: the parts of their rows, their contacts, and when they occurred, in microseconds."""

    parts: EventParts
    contact_ids: Sequence[str]
    occurred_at_us: Sequence[int]


class CopyTarget(msgspec.Struct, frozen=True):
    """The tables that events are written to, and the number of the transaction that writes them."""

    tables: MonthTables
    number: int


async def add_keys(tx: Transaction, rows: Sequence[bytes], at: datetime) -> None:
    """Claim idempotency keys (`key_rows`, sorted).

    Raises TransactionConflictError if one was claimed since it was looked up.
    """
    end = _NUMBER(8, to_us(at) - _EPOCH_US)
    await tx.execute(_SQL["prepare_keys"])
    await _copy(tx, sql.SQL(_SQL["send_keys"]), (end.join([*block, b""]) for block in _blocks(rows)))
    try:
        await tx.execute(_SQL["add_keys"])
    except psycopg.Error as error:
        if not is_violation(error):
            raise
        raise TransactionConflictError("an idempotency key was claimed at the same time") from None


def find_tables(occurred_at_us: Sequence[int]) -> Call[MonthTables]:
    """Find the table for the month of each of these times; months without their own partition share the default one."""
    months = list(_by_month(occurred_at_us, range(len(occurred_at_us))))

    def read(rows: Rows) -> MonthTables:
        partitioned = {month for (month,) in rows}
        return {month: sql.Identifier(f"events_{month}" if month in partitioned else _OTHER_MONTHS) for month in months}

    return Call(_CALLS["list_months"], read, months=plain(months))


async def add_past_events(tx: Transaction, rows: PastRows, positions: Sequence[int], target: CopyTarget) -> None:
    """Store the events at these positions (at least one, ascending)."""
    end = _NUMBER(8, target.number)
    for month, in_month in _by_month(rows.occurred_at_us, positions).items():
        await _copy(
            tx,
            sql.SQL(_SQL["add_past_events"]).format(target.tables[month]),
            (_events_block(rows, block, end) for block in _blocks(in_month)),
        )


def _by_month(occurred_at_us: Sequence[int], positions: Sequence[int]) -> dict[str, Sequence[int]]:
    """Group positions by the month (`2026_11`) of their times."""
    times = _chosen(occurred_at_us, positions)
    first, last = _month(min(times)), _month(max(times))
    if first == last:
        return {first: positions}
    days = [at_us // _DAY_US for at_us in times]
    months = {day: _month(day * _DAY_US) for day in set(days)}  # formatting a date per event would cost more
    groups: dict[str, list[int]] = {month: [] for month in sorted(set(months.values()))}
    for position, day in zip(positions, days, strict=True):
        groups[months[day]].append(position)
    return dict(groups)


def _month(at_us: int) -> str:
    return f"{from_us(at_us):%Y_%m}"


def _events_block(rows: PastRows, positions: Sequence[int], end: bytes) -> bytes:
    heads, payloads, tails, identifiers = (_chosen(column, positions) for column in rows.parts)
    ids = bytes.fromhex("".join(_chosen(rows.contact_ids, positions)).replace("-", ""))
    parts = [end] * (6 * len(positions))
    parts[0::6], parts[1::6], parts[2::6], parts[3::6] = heads, payloads, tails, identifiers
    parts[4::6] = [ids[start : start + 16] for start in range(0, len(ids), 16)]
    return b"".join(parts)


def _chosen(column: Sequence[_Part], positions: Sequence[int]) -> Sequence[_Part]:
    first, last = positions[0], positions[-1]
    if last - first + 1 == len(positions):  # ascending, so there are no gaps: a slice
        return column[first : last + 1]
    return [column[position] for position in positions]


def _blocks(parts: Sequence[_Part]) -> Iterable[Sequence[_Part]]:
    return (parts[start : start + _BLOCK_ROWS] for start in range(0, len(parts), _BLOCK_ROWS))


async def _copy(tx: Transaction, statement: sql.Composed | sql.SQL, blocks: Iterable[bytes]) -> None:
    async with tx.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(SIGNATURE)
        for block in blocks:
            await copy.write(block)
        await copy.write(END)
