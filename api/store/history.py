"""Statements of the import (`sql/queries/history.sql`), and the months that old events need.

Events and their keys are written by COPY in its binary format, a block at a time: Postgres takes one in while we write the next.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import msgspec
from psycopg import errors

from api.clock import to_us
from api.store.arrays import plain, quoted, records, uuids
from api.store.calls import Call, nothing, statements
from api.store.database import ConflictError, Transaction
from api.store.ingest import ContactRows, Owner, contact_columns
from api.store.migrate import add_months
from api.store.statements import load

_SQL = load("history")
_CALLS = statements("history")


PastEvent = tuple[str, str, str, int, bytes, str, str | None, str | None, str | None]
"""id, contact, name, moment it occurred and is said to have been created (microseconds), payload, idempotency key, wallet, sealed
email, external id."""


PastKey = tuple[str, str, str]
"""Digest of an idempotency key, id of its event, digest of its body; digests are 32 hex digits."""


class Returning(msgspec.Struct, gc=False):
    """The owner of an identifier, and when its row was last written, in microseconds."""

    owner: Owner
    updated_us: int


async def add_month(tx: Transaction, month: datetime) -> bool:
    """Make sure that `events` has a partition for the month; False: its events sit in `events_other`, and go on to do so.

    Whoever is in the way is waited for only briefly (LockedError).
    """
    await tx.execute(_SQL["wait_briefly"])
    try:
        async with tx.transaction():
            await add_months(tx, month, month)
    except errors.CheckViolation:
        return False
    except (errors.DuplicateTable, errors.UniqueViolation):  # another process was making it at the same time
        return True
    return True


async def most_locks(tx: Transaction) -> int:
    """Return how many locks a transaction may take without anybody else going short."""
    row = await (await tx.execute(_SQL["most_locks"])).fetchone()
    assert row is not None
    return int(row[0])


def find_held_keys(org_id: int, digests: Sequence[str]) -> Call[set[int]]:
    """Ask for the positions (from 0) of the idempotency keys that somebody holds."""
    return Call(
        _CALLS["find_held_keys"],
        lambda rows: {int(position) for (position,) in rows},
        org_ids=_alike(org_id, len(digests)),
        key_digests=uuids(digests),
    )


def find_changed_contacts(org_id: int, updated_us: Mapping[str, int]) -> Call[set[str]]:
    """Ask for the contacts that have been written since the moments given, in microseconds, or merged."""
    return Call(
        _CALLS["find_changed_contacts"],
        lambda rows: {str(contact_id) for (contact_id,) in rows},
        org_ids=_alike(org_id, len(updated_us)),
        ids=uuids(list(updated_us)),
        updated_us=plain(updated_us.values()),
    )


def find_returning(
    org_id: int, kinds: Iterable[int], digests: Sequence[str], attributes: Iterable[str]
) -> Call[list[Returning]]:
    """Ask who owns identifiers, as `find_owners` does; those nobody owns are left out."""
    return Call(
        _CALLS["find_returning"],
        lambda rows: [Returning(Owner(*row[:-1]), row[-1]) for row in rows],
        org_ids=_alike(org_id, len(digests)),
        kinds=plain(kinds),
        digests=uuids(digests),
        attributes=records(attributes),
    )


def add_past_contacts(rows: ContactRows, first_us: Mapping[str, int], at: datetime) -> Call[None]:
    """Store new contacts, created at the moments given, in microseconds."""
    return Call(
        _CALLS["add_past_contacts"],
        nothing,
        **contact_columns(rows),
        attributes=quoted(rows.attributes),
        created_us=plain([first_us[contact_id] for contact_id in rows.ids]),
        updated_at=at,
    )


async def add_keys(tx: Transaction, org_id: int, keys: Sequence[PastKey], at: datetime) -> None:
    """Claim idempotency keys, given sorted; raise ConflictError when one was claimed since it was looked for."""
    head, tail = _COUNT_AND_ORG.pack(5, 8, org_id), _MOMENT.pack(8, to_us(at) - _EPOCH_US)

    def rows(block: Sequence[PastKey]) -> bytes:
        ids = _sixteens([text for key in block for text in key])
        return b"".join([b"".join((head, *ids[n : n + 3], tail)) for n in range(0, len(ids), 3)])

    try:
        await _copy(tx, "add_keys", keys, rows)
    except errors.UniqueViolation:
        raise ConflictError("an idempotency key was claimed at the same time") from None


async def add_past_events(tx: Transaction, org_id: int, events: Sequence[PastEvent], number: int) -> None:
    """Store events of the past by the transaction of that number."""
    head, tail = _COUNT_AND_ORG.pack(12, 8, org_id), _BIGINT.pack(8, number)

    def rows(block: Sequence[PastEvent]) -> bytes:
        ids = iter(_sixteens([text for each in block for text in each[:2]]))
        return b"".join([_event_row(head, each, next(ids), next(ids), tail) for each in block])

    await _copy(tx, "add_past_events", events, rows)


def _event_row(head: bytes, event: PastEvent, event_id: bytes, contact_id: bytes, tail: bytes) -> bytes:
    _, _, name, at_us, payload, key, wallet, email, external_id = event
    raw_key, at = key.encode(), at_us - _EPOCH_US
    return b"".join(
        (
            head,
            event_id,
            contact_id,
            _name(name),
            _TWO_MOMENTS(8, at, 8, at),
            _JSON_LENGTH(len(payload) + 1, 1),
            payload,
            _LENGTH(len(raw_key)),
            raw_key,
            _who(wallet, email, external_id),
            tail,
        )
    )


@lru_cache(maxsize=1_024)
def _name(name: str) -> bytes:
    return _text(name)


@lru_cache(maxsize=65_536)
def _who(*identifiers: str | None) -> bytes:
    return b"".join(map(_text, identifiers))


_BLOCK = 500
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_SIXTEEN = b"\0\0\0\x10"
_EPOCH_US = 946_684_800_000_000  # Postgres counts from the year 2000
_COUNT_AND_ORG = struct.Struct(">hiq")
_MOMENT = _BIGINT = struct.Struct(">iq")
_TWO_MOMENTS = struct.Struct(">iqiq").pack
_LENGTH = struct.Struct(">i").pack
_JSON_LENGTH = struct.Struct(">iB").pack  # a version stands before the text of jsonb
_Record = TypeVar("_Record")


async def _copy(
    tx: Transaction, statement: str, records: Sequence[_Record], rows: Callable[[Sequence[_Record]], bytes]
) -> None:
    async with tx.cursor() as cursor, cursor.copy(_SQL[statement]) as copy:
        await copy.write(_SIGNATURE)
        for start in range(0, len(records), _BLOCK):
            await copy.write(rows(records[start : start + _BLOCK]))
        await copy.write(_END)


def _alike(org_id: int, count: int) -> str:
    return "{" + ",".join([str(org_id)] * count) + "}"


def _sixteens(ids: Sequence[str]) -> list[bytes]:
    """Return ids or digests as fields of sixteen bytes."""
    raw = bytes.fromhex("".join(ids).replace("-", ""))
    return [_SIXTEEN + raw[start : start + 16] for start in range(0, len(raw), 16)]


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _LENGTH(len(raw)) + raw
