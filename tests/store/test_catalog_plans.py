"""The catalog never scans rows that are already counted, whatever plan Postgres chooses."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from api.auth import keys
from api.catalog.counts import count_events
from api.clock import Clock
from api.store.database import Database, load_numbered
from api.store.events import _edges
from workbench.language.codec import decode

pytestmark = pytest.mark.plain

EVENTS = 30_000
FILL = (
    "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
    " SELECT 1, gen_random_uuid(), gen_random_uuid(), 'e' || n %% 5, at, at, n::text"
    f" FROM generate_series(1, {EVENTS}) n, LATERAL (SELECT %s::timestamptz - n * interval '1 minute' AS at) t"
)
TYPES = {"org_id": "bigint", "event": "text", "prefix": "text", "limit": "bigint"}


@pytest.fixture
async def full(database_url: str) -> AsyncIterator[tuple[Database, datetime]]:
    """A database with counted events, one per minute, and the current time."""
    assert await keys.create_org(database_url, "acme") == 1
    database, clock = Database(database_url, size=2), Clock()
    await database.open()
    now = await database.calibrate(clock)
    async with database.transaction() as tx:
        await tx.execute(FILL, (now,))
        await tx.execute("ANALYZE events")
    await count_events(database, now)
    yield database, now
    await database.close()


async def test_counted_rows_are_not_scanned(full: tuple[Database, datetime]) -> None:
    database, now = full
    edges = msgspec.structs.asdict(_edges(now - timedelta(days=15, minutes=17)))
    values = {"org_id": 1, "event": "e1", "prefix": "", "limit": 200, **edges}
    for statement in ("count_events", "count_event"):
        text, order = load_numbered("events")[statement]
        types = ", ".join(TYPES.get(name, "timestamptz") for name in order)
        arguments = ", ".join(f"'{values[name]}'" for name in order)
        for mode in ("force_custom_plan", "force_generic_plan"):
            async with database.transaction() as tx:
                await tx.execute(f"SET LOCAL plan_cache_mode = {mode}")
                await tx.execute(f"PREPARE guarded ({types}) AS {text}".encode())
                rows = await (
                    await tx.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE guarded ({arguments})".encode())
                ).fetchall()
                await tx.execute("DEALLOCATE guarded")
            explained = rows[0][0]
            plan = (decode(explained) if isinstance(explained, bytes) else explained)[0]["Plan"]
            assert 0 < sum(read(plan)) < 250, (statement, mode)


def read(node: dict[str, Any]) -> Iterator[int]:
    """Yield the number of rows that each scan of `events` in a plan reads: at most an hour, and uncounted ones."""
    if node.get("Relation Name", "").startswith("events_"):
        rows_read = (
            node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        )
        yield int(rows_read * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from read(child)
