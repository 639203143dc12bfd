"""The catalog never goes through the rows that are counted already, whatever plan Postgres keeps."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from api.access import orgs
from api.clock import Clock
from api.ingest.counting import count_events
from api.language.codec import decode
from api.store.catalog import _borders
from api.store.database import Database
from api.store.statements import load_numbered

pytestmark = pytest.mark.plain

EVENTS = 30_000
FILL = (
    "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
    " SELECT 1, gen_random_uuid(), gen_random_uuid(), 'e' || n %% 5, at, at, n::text"
    f" FROM generate_series(1, {EVENTS}) n, LATERAL (SELECT %s::timestamptz - n * interval '1 minute' AS at) t"
)
TYPES = {"org_id": "bigint", "event": "text", "prefix": "text", "most": "bigint"}


@pytest.fixture
async def full(database_url: str) -> AsyncIterator[tuple[Database, datetime]]:
    """A database with counted events, one a minute, and the moment."""
    assert await orgs.create(database_url, "acme") == 1
    database, clock = Database(database_url, size=2), Clock()
    await database.open()
    now = await database.calibrate(clock)
    async with database.transaction() as tx:
        await tx.execute(FILL, (now,))
        await tx.execute("ANALYZE events")
    await count_events(database, now)
    yield database, now
    await database.close()


async def test_counted_rows_are_left_alone(full: tuple[Database, datetime]) -> None:
    database, now = full
    values = {"org_id": 1, "event": "e1", "prefix": "", "most": 200, **_borders(now - timedelta(days=15, minutes=17))}
    for name in ("count_events", "count_event"):
        text, order = load_numbered("catalog")[name]
        types = ", ".join(TYPES.get(each, "timestamptz") for each in order)
        given = ", ".join(f"'{values[each]}'" for each in order)
        for mode in ("force_custom_plan", "force_generic_plan"):
            async with database.transaction() as tx:
                await tx.execute(f"SET LOCAL plan_cache_mode = {mode}")
                await tx.execute(f"PREPARE guarded ({types}) AS {text}".encode())
                rows = await (
                    await tx.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE guarded ({given})".encode())
                ).fetchall()
                await tx.execute("DEALLOCATE guarded")
            found = rows[0][0]
            plan = (decode(found) if isinstance(found, bytes) else found)[0]["Plan"]
            assert 0 < sum(read(plan)) < 250, (name, mode)


def read(node: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows of `events` the scans of a plan went through: at most an hour's, and what is not counted yet."""
    if node.get("Relation Name", "").startswith("events_"):
        gone_through = (
            node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        )
        yield int(gone_through * node["Actual Loops"])
    for each in node.get("Plans", ()):
        yield from read(each)
