"""Statements of the import (`sql/queries/history.sql`), and the months that old events need.

Events and their keys are written by COPY in its binary format, a block at a time: Postgres takes one in while we write the next.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from psycopg import errors

from api.clock import to_us
from api.store.arrays import plain, records, uuids
from api.store.calls import Call, run, statements
from api.store.database import ConflictError, Transaction
from api.store.ingest import Owner
from api.store.migrate import add_months
from api.store.statements import load

_SQL = load("history")
_CALLS = statements("history")


class PastEvent(msgspec.Struct, gc=False):
    """An event to store; `at_us`: when it occurred and is said to have been created, in microseconds; `email` is sealed."""

    id: str
    contact_id: str
    name: str
    at_us: int
    payload: bytes
    idempotency_key: str
    wallet: str | None
    email: str | None
    external_id: str | None


class PastKey(msgspec.Struct, gc=False):
    """The idempotency key of an event; digests are 32 hex digits."""

    key_digest: str
    event_id: str
    body_digest: str


class Returning(msgspec.Struct, gc=False):
    """The owner of an identifier, and when its row was last written, in microseconds."""

    owner: Owner
    updated_us: int


async def add_month(tx: Transaction, month: datetime) -> bool:
    """Make sure that `events` has a partition for the month; False: its events sit in `events_other`, and go on to do so."""
    try:
        async with tx.transaction():
            await add_months(tx, month, month)
    except errors.CheckViolation:
        return False
    except (errors.DuplicateTable, errors.UniqueViolation):  # another process was making it at the same time
        return True
    return True


async def find_held_keys(tx: Transaction, org_id: int, digests: Sequence[str]) -> set[int]:
    """Return the positions (from 0) of the idempotency keys that somebody holds."""
    call = Call(
        _CALLS["find_held_keys"],
        lambda rows: {position for (position,) in rows},
        org_id=org_id,
        key_digests=uuids(digests),
    )
    return (await run(tx, call))[0]


async def find_changed_contacts(tx: Transaction, org_id: int, updated_us: Mapping[str, int]) -> set[str]:
    """Return the contacts that have been written since the moments given, in microseconds, or merged."""
    call = Call(
        _CALLS["find_changed_contacts"],
        lambda rows: {contact_id for (contact_id,) in rows},
        org_id=org_id,
        ids=uuids(list(updated_us)),
        updated_us=plain(updated_us.values()),
    )
    return (await run(tx, call))[0]


async def find_returning(
    tx: Transaction, org_id: int, kinds: Iterable[int], digests: Sequence[str], attributes: Iterable[str]
) -> list[Returning]:
    """Return who owns identifiers, as `find_owners` does; those nobody owns are left out."""
    call = Call(
        _CALLS["find_returning"],
        lambda rows: [Returning(Owner(*row[:-1]), row[-1]) for row in rows],
        org_id=org_id,
        kinds=plain(kinds),
        digests=uuids(digests),
        attributes=records(attributes),
    )
    return (await run(tx, call))[0]


async def date_contacts(tx: Transaction, org_id: int, created_us: Mapping[str, int]) -> None:
    """Let new contacts date from these moments."""
    values = {"org_id": org_id, "ids": plain(created_us), "created_us": plain(created_us.values())}
    await tx.execute(_SQL["date_contacts"], values)


async def add_keys(tx: Transaction, org_id: int, keys: Collection[PastKey], at: datetime) -> None:
    """Claim idempotency keys, sorted; raise ConflictError when one was claimed since it was looked for."""
    head, tail = _COUNT_AND_ORG.pack(5, 8, org_id), _MOMENT.pack(8, to_us(at) - _EPOCH_US)

    def rows(block: Sequence[PastKey]) -> bytes:
        ids = _sixteens([text for each in block for text in (each.key_digest, each.event_id, each.body_digest)])
        return b"".join([b"".join((head, *ids[n : n + 3], tail)) for n in range(0, len(ids), 3)])

    try:
        await _copy(tx, "add_keys", sorted(keys, key=lambda each: each.key_digest), rows)
    except errors.UniqueViolation:
        raise ConflictError("an idempotency key was claimed at the same time") from None


async def add_past_events(tx: Transaction, org_id: int, events: Sequence[PastEvent]) -> None:
    """Store events of the past."""
    head = _COUNT_AND_ORG.pack(11, 8, org_id)

    def rows(block: Sequence[PastEvent]) -> bytes:
        ids = iter(_sixteens([text for each in block for text in (each.id, each.contact_id)]))
        return b"".join([_event_row(head, each, next(ids), next(ids)) for each in block])

    await _copy(tx, "add_past_events", events, rows)


def _event_row(head: bytes, event: PastEvent, event_id: bytes, contact_id: bytes) -> bytes:
    name, key, at = event.name.encode(), event.idempotency_key.encode(), event.at_us - _EPOCH_US
    return b"".join(
        (
            head,
            event_id,
            contact_id,
            _LENGTH(len(name)),
            name,
            _TWO_MOMENTS(8, at, 8, at),
            _JSON_LENGTH(len(event.payload) + 1, 1),
            event.payload,
            _LENGTH(len(key)),
            key,
            _text(event.wallet),
            _text(event.email),
            _text(event.external_id),
        )
    )


_BLOCK = 500
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_SIXTEEN = b"\0\0\0\x10"
_EPOCH_US = 946_684_800_000_000  # Postgres counts from the year 2000
_COUNT_AND_ORG = struct.Struct(">hiq")
_MOMENT = struct.Struct(">iq")
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


def _sixteens(ids: Sequence[str]) -> list[bytes]:
    """Return ids or digests as fields of sixteen bytes."""
    raw = bytes.fromhex("".join(ids).replace("-", ""))
    return [_SIXTEEN + raw[start : start + 16] for start in range(0, len(raw), 16)]


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _LENGTH(len(raw)) + raw
