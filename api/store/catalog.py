"""Statements of the event catalog (`sql/queries/catalog.sql`)."""

from datetime import datetime

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("catalog")


async def count_events(tx: Transaction, org_id: int, since: datetime, prefix: str, most: int) -> list[tuple[str, int]]:
    """Return (event, count) received since a moment, most frequent first, at most `most` names."""
    cursor = await tx.execute(_SQL["count_events"], {"org_id": org_id, "since": since, "prefix": prefix, "most": most})
    return [(event, count) for event, count in await cursor.fetchall()]


async def describe_event(
    tx: Transaction, org_id: int, event: str, since: datetime
) -> tuple[int, datetime | None, datetime | None]:
    """Return count, first and last moment of one event."""
    cursor = await tx.execute(_SQL["describe_event"], {"org_id": org_id, "event": event, "since": since})
    row = await cursor.fetchone()
    return row if row is not None else (0, None, None)


async def sample_payloads(tx: Transaction, org_id: int, event: str, since: datetime, most: int) -> list[bytes]:
    """Return the JSON texts of the newest payloads of one event."""
    cursor = await tx.execute(_SQL["sample_payloads"], {"org_id": org_id, "event": event, "since": since, "most": most})
    return [row[0] for row in await cursor.fetchall()]
