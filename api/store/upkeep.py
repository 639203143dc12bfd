"""Chores every installation needs, done by whichever API process comes first (`sql/queries/upkeep.sql`)."""

from datetime import datetime, timedelta

from psycopg import sql

from api.clock import to_us, uuid7_from
from api.store.database import Transaction
from api.store.migrate import add_months
from api.store.statements import load

_SQL = load("upkeep")

KEPT = timedelta(days=7)
_AHEAD = timedelta(days=93)


async def analyze_new_tables(tx: Transaction) -> list[str]:
    """Take statistics of tables that have rows and none; return their names. After that autovacuum keeps them."""
    rows = await (await tx.execute(_SQL["unknown_tables"])).fetchall()
    for (name,) in rows:
        await tx.execute(sql.SQL("ANALYZE {}").format(sql.Identifier("workbench", name)))
    return [name for (name,) in rows]


async def add_coming_months(tx: Transaction, now: datetime) -> None:
    """Make sure that `events` has partitions for this month and the next three."""
    await add_months(tx, now, now + _AHEAD)


async def forget_dry_runs(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete up to `most` of an organization's dry runs that are older than seven days; return how many that were."""
    return (await tx.execute(_SQL["forget_dry_runs"], _oldest(org_id, now, most))).rowcount


async def forget_notices(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete up to `most` of an organization's refusals and duplicates in the same way; return how many that were."""
    return (await tx.execute(_SQL["forget_notices"], _oldest(org_id, now, most))).rowcount


async def organizations(tx: Transaction) -> list[int]:
    """Return the ids of all organizations."""
    return [row[0] for row in await (await tx.execute(_SQL["organizations"])).fetchall()]


def _oldest(org_id: int, now: datetime, most: int) -> dict[str, int | str]:
    return {"org_id": org_id, "before": uuid7_from(to_us(now - KEPT), bytes(8)), "most": most}
