"""How chains are read, for the operator."""

from api.access.session import session
from api.store import logs as store
from api.store.logs import ChainRow, DeadLogRow

MOST_DEAD = 1_000


async def chains(dsn: str) -> list[ChainRow]:
    """Return how far each was read, and what hinders that."""
    async with session(dsn) as (tx, now):
        return await store.list_chains(tx, now)


async def dead(dsn: str) -> list[DeadLogRow]:
    """Return the newest logs that could not be stored, whosever they are."""
    async with session(dsn) as (tx, _):
        return await store.list_dead_logs(tx, MOST_DEAD)
