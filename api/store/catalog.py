"""Statements of the event catalog (`sql/queries/catalog.sql`)."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("catalog")
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


class Counted(msgspec.Struct, frozen=True):
    """How often an event was received, and on which days of UTC; days without any are left out."""

    event: str
    count: int
    days: dict[datetime, int]


class StoredEvent(msgspec.Struct, frozen=True):
    """An event with its payload as JSON text."""

    id: str
    created_at: datetime
    occurred_at: datetime
    payload: bytes


async def count_events(tx: Transaction, org_id: int, since: datetime, prefix: str, most: int) -> list[Counted]:
    """Return what was received since a moment of the last 30 days, most frequent first, at most `most` names."""
    values = {"org_id": org_id, "prefix": prefix, "most": most, **_borders(since)}
    rows = await (await tx.execute(_SQL["count_events"], values)).fetchall()
    return [Counted(event, total, dict(zip(days, counts, strict=True))) for event, total, days, counts in rows]


async def count_event(tx: Transaction, org_id: int, event: str, since: datetime) -> Counted:
    """Return the same of one event."""
    values = {"org_id": org_id, "event": event, **_borders(since)}
    days: dict[datetime, int] = dict(await (await tx.execute(_SQL["count_event"], values)).fetchall())
    return Counted(event, sum(days.values()), days)


async def seen(
    tx: Transaction, org_id: int, events: Sequence[str], since: datetime
) -> list[tuple[datetime | None, datetime | None]]:
    """Return when each event was received first and last since a moment."""
    cursor = await tx.execute(_SQL["seen"], {"org_id": org_id, "events": list(events), "since": since})
    return [(first, last) for first, last in await cursor.fetchall()]


async def newest_events(tx: Transaction, org_id: int, event: str, since: datetime, most: int) -> list[StoredEvent]:
    """Return the newest events of one name, the newest first."""
    cursor = await tx.execute(_SQL["newest_events"], {"org_id": org_id, "event": event, "since": since, "most": most})
    return [StoredEvent(*row) for row in await cursor.fetchall()]


async def earlier_payloads(
    tx: Transaction, org_id: int, event: str, span: tuple[datetime, datetime], parts: int, of_each: int
) -> list[bytes]:
    """Return the JSON texts of payloads from between two moments, the newest `of_each` of each of `parts` equal parts."""
    since, until = span
    values = {"org_id": org_id, "event": event, "since": since, "until": until, "parts": parts, "of_each": of_each}
    return [row[0] for row in await (await tx.execute(_SQL["earlier_payloads"], values)).fetchall()]


def _borders(since: datetime) -> dict[str, datetime]:
    hour = since.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    return {
        "since": since,
        "edge_day": day,
        "edge_hour": hour,
        "first_day": day if day == since else day + _DAY,
        "first_hour": hour if hour == since else hour + _HOUR,
    }
