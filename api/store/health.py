"""Signs of life (`sql/queries/health.sql`)."""

from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("health")
_LONG = timedelta(days=1)
_SILENT = timedelta(seconds=15)


class Beat(msgspec.Struct, frozen=True):
    """A sign of life of an engine, and when the next entry was due by then."""

    seen_at: datetime
    next_due_at: datetime | None

    def lag_seconds(self, now: datetime) -> float:
        """Return how late that entry was at the sign of life; of an engine that is silent, how late it is by now. 0: it is not."""
        if self.next_due_at is None:
            return 0.0
        known_at = (
            now if self.is_silent(now) else self.seen_at
        )  # else what was due just then would seem to wait until the next
        return max((known_at - self.next_due_at).total_seconds(), 0.0)

    def is_silent(self, now: datetime) -> bool:
        """Return whether there should have been another sign of life."""
        return now - self.seen_at >= _SILENT


async def beat(tx: Transaction, engine_id: str, now: datetime, next_due_at: datetime | None) -> None:
    """Say that an engine is alive, and when the next entry is due."""
    await tx.execute(_SQL["beat"], {"id": engine_id, "now": now, "next_due_at": next_due_at})


async def leave(tx: Transaction, engine_id: str, now: datetime) -> None:
    """Say that an engine stops; forget those silent for a day."""
    await tx.execute(_SQL["leave"], {"id": engine_id, "long_ago": now - _LONG})


async def last_beat(tx: Transaction) -> Beat | None:
    """Return the last sign of life of any engine."""
    row = await (await tx.execute(_SQL["last_beat"])).fetchone()
    return None if row is None else Beat(*row)
