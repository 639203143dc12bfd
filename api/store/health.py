"""Signs of life (`sql/queries/health.sql`)."""

from datetime import datetime, timedelta

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("health")
_LONG = timedelta(days=1)


async def beat(tx: Transaction, engine_id: str, now: datetime) -> None:
    """Say that an engine is alive."""
    await tx.execute(_SQL["beat"], {"id": engine_id, "now": now})


async def leave(tx: Transaction, engine_id: str, now: datetime) -> None:
    """Say that an engine stops; forget those silent for a day."""
    await tx.execute(_SQL["leave"], {"id": engine_id, "long_ago": now - _LONG})


async def last_beat(tx: Transaction) -> datetime | None:
    """Return when any engine was last alive."""
    row = await (await tx.execute(_SQL["last_beat"])).fetchone()
    return None if row is None else row[0]
