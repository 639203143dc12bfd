"""Segments: a refresh by increments after 10,000 new events, compared with a refresh that reads everything.

The events have 200 names and are spread over 90 days. Each of the new ones is of another contact. Both refreshes run in
this process as in an engine, with its limits. The one that reads everything follows the other one, with the same
events, after the segment has lost its watermark.

For the query without names of events, each refresh reads 10,000 contacts with 20 events each. These are 200,000 rows in
as many blocks. Bitmap scans read them in the order of the table (docs/decisions/0108-changed-contacts-immutable.md).
"""

import asyncio
import time

import msgspec

from api.automations.automations import Author
from api.clock import Clock, uuid7
from api.crypto import Keyring
from api.segments import segments
from api.segments.candidates import SegmentServices
from api.segments.definition import SegmentBody
from api.segments.segments import SegmentResult
from api.store.database import Database as Pool
from api.store.segments import SegmentRow, find_segment
from api.worker import segment_services
from bench import filling, postgres
from bench.effort import Effort, Measurement
from bench.postgres import SECRET, Database, Postgres, admin_dsn, lift_temp_file_limit
from bench.sending import cpu_so_far
from bench.table import Row, at_most, row

NEW_EVENTS = 10_000
_ORG_ID = 1
_DAYS = 90.0
_SPENDERS = (
    "SELECT contact_id FROM app_events WHERE event IN ('event_0', 'event_1', 'event_2') "
    "GROUP BY contact_id HAVING sum((payload ->> 'amountUsd')::numeric) > 2000"
)
_QUERIES = {
    "all-time": _SPENDERS,
    "thirty-days": _SPENDERS.replace("GROUP BY", "AND occurred_at > now() - interval '30 days' GROUP BY"),
    "attribute": (
        "SELECT id AS contact_id FROM contacts c WHERE metadata ->> 'plan' = 'pro' AND NOT EXISTS (SELECT 1 FROM "
        "app_events e WHERE e.contact_id = c.id AND e.event = 'event_0' AND e.occurred_at > now() - interval '7 days')"
    ),
    # Of events of all names, so that each new one makes its contact be read.
    "all-names": (
        "SELECT contact_id FROM app_events GROUP BY contact_id HAVING sum((payload ->> 'amountUsd')::numeric) > 12000"
    ),
}


class RefreshCost(msgspec.Struct, frozen=True):
    """What a refresh took, here and in Postgres, and how many contacts it looked at (None: all)."""

    seconds: float
    cpu_seconds: float
    contacts: int | None


def measure(effort: Effort) -> Measurement:
    """Refresh segments of `effort.stored_millions` of events."""
    stored = effort.stored_millions * 1_000_000
    with postgres.running() as server:
        database = postgres.prepared(server, "segments")
        filling.fill_past(database, stored, _DAYS)
        filling.settle(server)
        increments, whole = asyncio.run(alternate(server, database, stored, effort.rounds))
    rows: list[Row] = []
    for name in _QUERIES:
        looked_at = [cost.contacts for cost in increments[name]]
        assert None not in looked_at, f"{name!r} was not refreshed by increments"
        text = f"segment {name!r}, {NEW_EVENTS:,} new events of {effort.stored_millions} M, {looked_at[-1]:,} contacts"
        for unit, of in (("s", "seconds"), ("CPU s", "cpu_seconds")):
            costs, references = ([getattr(cost, of) for cost in costs[name]] for costs in (increments, whole))
            promise = at_most(1.0) if unit == "s" else None
            rows.append(
                row(text if promise else "  here and in Postgres", unit, costs, ("whole query", references), promise)
            )
    return Measurement(rows, {})


async def alternate(
    server: Postgres, database: Database, stored: int, rounds: int
) -> tuple[dict[str, list[RefreshCost]], dict[str, list[RefreshCost]]]:
    """Return the costs of refreshes by increments and of the whole query, by segment."""
    pool = Pool(database.dsn, size=7, statement_ms=120_000)
    await pool.open()
    services = segment_services(pool, Keyring(SECRET))
    increments: dict[str, list[RefreshCost]] = {name: [] for name in _QUERIES}
    whole: dict[str, list[RefreshCost]] = {name: [] for name in _QUERIES}
    rows = {}
    for name, query in _QUERIES.items():
        rows[name] = await _define(services, name, query)
        await asyncio.to_thread(lift_temp_file_limit, admin_dsn(server, database))
    for number in range(rounds):
        await asyncio.to_thread(filling.add_events, database, NEW_EVENTS, stored, number * NEW_EVENTS)
        for name, segment in rows.items():
            increments[name].append(await _refresh(server, services, segment, from_start=False))
            whole[name].append(await _refresh(server, services, segment, from_start=True))
    await pool.close()
    return increments, whole


async def _define(services: SegmentServices, name: str, query: str) -> SegmentRow:
    now_us = Clock().unique_now_us()
    result = await segments.create(services, Author(_ORG_ID, uuid7(now_us), now_us), SegmentBody(name, query))
    assert isinstance(result, SegmentResult), result
    return result.row


async def _refresh(server: Postgres, services: SegmentServices, row: SegmentRow, *, from_start: bool) -> RefreshCost:
    async with services.database.transaction() as tx:
        latest = await find_segment(tx, row.org_id, row.name)
    assert latest is not None
    if from_start:
        latest = msgspec.structs.replace(latest, watermark=None)
    before, begun, own_cpu_s = cpu_so_far(server, []), time.perf_counter(), time.process_time()
    result = await segments.refresh(services, latest, Clock().now())
    seconds, own_cpu_s, after = time.perf_counter() - begun, time.process_time() - own_cpu_s, cpu_so_far(server, [])
    assert isinstance(result, SegmentResult)
    assert result.scope is not None
    return RefreshCost(seconds, own_cpu_s + after["postgres"] - before["postgres"], result.scope.contacts)
