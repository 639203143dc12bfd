"""What came in lately, of every outcome (`sql/queries/recent.sql`): accepted and dry events, refusals and duplicates."""

from collections.abc import Collection
from datetime import datetime

import msgspec

from api.clock import to_us, uuid7_from
from api.store.arrays import plain, quoted
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("recent")


class Selection(msgspec.Struct, frozen=True):
    """Which events: those of an organization with one of these outcomes, received not before `since`."""

    org_id: int
    outcomes: tuple[str, ...]
    since: datetime


class RecentRow(msgspec.Struct, frozen=True):
    """One event; `payload` and `body` are JSON texts, `body` without values."""

    id: str
    at: datetime
    outcome: str
    event: str | None
    contact_id: str | None
    idempotency_key: str | None
    payload: bytes | None
    field: str | None
    reason: str | None
    body: bytes | None
    matched: int | None


class NoticeRows(msgspec.Struct):
    """Columns of refusals and duplicates to keep."""

    org_ids: list[int] = []
    ids: list[str] = []
    outcomes: list[str] = []
    events: list[str | None] = []
    idempotency_keys: list[str | None] = []
    fields: list[str | None] = []
    reasons: list[str | None] = []
    bodies: list[str | None] = []
    received_us: list[int] = []


async def ids_after(tx: Transaction, which: Selection, after: str, seen: Collection[str], most: int) -> list[str]:
    """Return up to `most` ids beyond `after` that are not in `seen`, oldest first."""
    values = {**_selected(which), "after": after, "seen": plain(seen), "most": most}
    return [row[0] for row in await (await tx.execute(_SQL["ids_after"], values)).fetchall()]


async def newest_ids(tx: Transaction, which: Selection, after: str, most: int) -> list[str]:
    """Return up to `most` ids beyond `after`, newest first."""
    values = {**_selected(which), "after": after, "most": most}
    return [row[0] for row in await (await tx.execute(_SQL["newest_ids"], values)).fetchall()]


async def read_recent(tx: Transaction, which: Selection, ids: Collection[str]) -> list[RecentRow]:
    """Return the events with these ids, oldest first."""
    values = {"org_id": which.org_id, "since": which.since, "ids": plain(ids)}
    return [RecentRow(*row) async for row in await tx.execute(_SQL["read_recent"], values)]


async def count_entries(tx: Transaction, org_id: int, received_at: Collection[datetime]) -> dict[str, int]:
    """Return how many entries the events received at these moments have, by event id; none: left out."""
    values = {
        "org_id": org_id,
        "first_ids": plain(uuid7_from(to_us(at), bytes(8)) for at in received_at),
        "last_ids": plain(uuid7_from(to_us(at), b"\xff" * 8) for at in received_at),
    }
    return {event_id: count async for event_id, count in await tx.execute(_SQL["count_entries"], values)}


async def add_notices(tx: Transaction, rows: NoticeRows) -> None:
    """Keep refusals and duplicates."""
    columns = {
        name: quoted(getattr(rows, name)) for name in ("events", "idempotency_keys", "fields", "reasons", "bodies")
    }
    columns |= {name: plain(getattr(rows, name)) for name in ("org_ids", "ids", "outcomes", "received_us")}
    await tx.execute(_SQL["add_notices"], columns)


def _selected(which: Selection) -> dict[str, object]:
    return {"org_id": which.org_id, "outcomes": plain(which.outcomes), "since": which.since}
