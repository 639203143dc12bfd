"""Statements of the import (`sql/queries/history.sql`), and the months that old events need."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from psycopg import errors

from api.store.arrays import plain
from api.store.database import Transaction
from api.store.migrate import add_months
from api.store.statements import load

_SQL = load("history")

PastEvent = tuple[int, str, str, str, str, str, str, str | None, str | None, str | None]
"""org, id, contact, name, moment it occurred and was created, payload, idempotency key, wallet, sealed email, external id."""


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


async def date_contacts(tx: Transaction, org_id: int, created_us: Mapping[str, int]) -> None:
    """Let new contacts date from these moments."""
    values = {"org_id": org_id, "ids": plain(created_us), "created_us": plain(created_us.values())}
    await tx.execute(_SQL["date_contacts"], values)


async def add_past_events(tx: Transaction, rows: Sequence[PastEvent], number: int) -> None:
    """Store events of the past by the transaction of that number. Written in blocks of text: Postgres takes one in while we write the next."""
    async with tx.cursor() as cursor, cursor.copy(_SQL["add_past_events"]) as copy:
        for start in range(0, len(rows), _BLOCK):
            await copy.write("".join(_line(row, number) for row in rows[start : start + _BLOCK]))


_BLOCK = 250


def _line(row: PastEvent, number: int) -> str:
    org_id, event_id, contact_id, event, at, payload, key, wallet, email, external_id = row
    return (
        f"{org_id}\t{event_id}\t{contact_id}\t{event}\t{at}\t{at}\t{_text(payload)}\t{_text(key)}\t{_text(wallet)}"
        f"\t{email or _NULL}\t{_text(external_id)}\t{number}\n"
    )


_NULL = r"\N"


def _text(value: str | None) -> str:
    if value is None:
        return _NULL
    return value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
