"""The meter: the statement of `sql/queries/usage.sql`."""

from datetime import datetime

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("usage")


async def count_sent(tx: Transaction, org_id: int, since: datetime, until: datetime) -> dict[str, int]:
    """Return how many messages were sent from `since` until before `until`, by channel; none: left out."""
    values = {"org_id": org_id, "since": since, "until": until}
    return {channel: count async for channel, count in await tx.execute(_SQL["count_sent"], values)}
