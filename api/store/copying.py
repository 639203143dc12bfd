"""Keys and events of the past, written by COPY, a block at a time: Postgres takes one in while we write the next.

COPY does not reach a table that is behind row-level security. So keys come by way of a temporary table, and events go straight into
the tables of their months, which only their whole is in front of.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
import psycopg
from psycopg import sql

from api.clock import from_us, to_us
from api.store.arrays import plain
from api.store.calls import Call, Rows, statements
from api.store.database import ConflictError, Transaction, is_violation
from api.store.past_rows import END, SIGNATURE, moment_field, number_field
from api.store.statements import load

_SQL = load("copying")
_CALLS = statements("copying")
_BLOCK = 250  # rows: some ten kilobytes or more
_OUTSIDE = "events_other"
_DAY_US = 86_400_000_000
_Part = TypeVar("_Part")

EventParts = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""Of each event its `past_rows.event_heads`, its payload, its `event_tails` and its `who_fields`."""


Tables = Mapping[str, sql.Identifier]
"""The table of each month (`2026_11`)."""


class PastRows(msgspec.Struct, frozen=True):
    """Events in columns: the parts of their rows, their contacts, and when they occurred, in microseconds."""

    parts: EventParts
    contact_ids: Sequence[str]
    ats_us: Sequence[int]


class Target(msgspec.Struct, frozen=True):
    """Where events go to: the tables of their months, by the transaction of that number."""

    tables: Tables
    number: int


async def add_keys(tx: Transaction, rows: Sequence[bytes], at: datetime) -> None:
    """Claim idempotency keys (`past_rows.key_rows`), sorted; raise ConflictError when one was claimed since it was looked for."""
    end = moment_field(to_us(at))
    await tx.execute(_SQL["prepare_keys"])
    await _copy(tx, sql.SQL(_SQL["send_keys"]), (end.join([*block, b""]) for block in _blocks(rows)))
    try:
        await tx.execute(_SQL["add_keys"])
    except psycopg.Error as error:
        if not is_violation(error):
            raise
        raise ConflictError("an idempotency key was claimed at the same time") from None


def find_tables(ats_us: Sequence[int]) -> Call[Tables]:
    """Ask for the table of each month of these moments; one that has none of its own is outside."""
    months = list(_by_month(ats_us, range(len(ats_us))))

    def read(rows: Rows) -> Tables:
        found = {month for (month,) in rows}
        return {month: sql.Identifier(f"events_{month}" if month in found else _OUTSIDE) for month in months}

    return Call(_CALLS["list_months"], read, months=plain(months))


async def add_past_events(tx: Transaction, rows: PastRows, positions: Sequence[int], target: Target) -> None:
    """Store the events of the past at these positions, at least one."""
    end = number_field(target.number)
    places = _by_month(rows.ats_us, positions)
    for month, positions in places.items():
        spans = list(_blocks(positions))
        await _copy(
            tx,
            sql.SQL(_SQL["add_past_events"]).format(target.tables[month]),
            (_events_block(rows, span, end) for span in spans),
        )


def _by_month(ats_us: Sequence[int], positions: Sequence[int]) -> dict[str, Sequence[int]]:
    """Return which of the positions belong to each month (`2026_11`)."""
    chosen = _chosen(ats_us, positions)
    first, last = _month(min(chosen)), _month(max(chosen))
    if first == last:
        return {first: positions}
    days = [at_us // _DAY_US for at_us in chosen]
    months = {day: _month(day * _DAY_US) for day in set(days)}
    places: dict[str, list[int]] = {month: [] for month in sorted(set(months.values()))}
    for position, day in zip(positions, days, strict=True):
        places[months[day]].append(position)
    return dict(places)


def _month(at_us: int) -> str:
    return f"{from_us(at_us):%Y_%m}"


def _events_block(rows: PastRows, positions: Sequence[int], end: bytes) -> bytes:
    heads, payloads, tails, who = (_chosen(column, positions) for column in rows.parts)
    ids = bytes.fromhex("".join(_chosen(rows.contact_ids, positions)).replace("-", ""))
    parts = [end] * (6 * len(positions))
    parts[0::6], parts[1::6], parts[2::6], parts[3::6] = heads, payloads, tails, who
    parts[4::6] = [ids[start : start + 16] for start in range(0, len(ids), 16)]
    return b"".join(parts)


def _chosen(column: Sequence[_Part], positions: Sequence[int]) -> Sequence[_Part]:
    first, last = positions[0], positions[-1]  # they rise
    if last - first + 1 == len(positions):
        return column[first : last + 1]
    return [column[position] for position in positions]


def _blocks(parts: Sequence[_Part]) -> Iterable[Sequence[_Part]]:
    return (parts[start : start + _BLOCK] for start in range(0, len(parts), _BLOCK))


async def _copy(tx: Transaction, statement: sql.Composed | sql.SQL, blocks: Iterable[bytes]) -> None:
    async with tx.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(SIGNATURE)
        for block in blocks:
            await copy.write(block)
        await copy.write(END)
