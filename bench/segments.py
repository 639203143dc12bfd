"""Segments: a refresh by increments after 10,000 new events, compared with a refresh that reads everything.

The events have 200 names and are spread over 90 days. The new ones are of random contacts, so nearly each of them
changes another contact. Both refreshes are requests to the API. The one that reads everything follows the other one,
with the same events, after the segment has lost its watermark.
"""

import time

import msgspec
from psycopg import sql

from bench import filling, postgres, site
from bench.effort import Effort, Measurement
from bench.postgres import Database, Postgres, execute
from bench.processes import Service
from bench.sending import cpu_so_far
from bench.table import Row, at_most, row

NEW_EVENTS = 10_000
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
}
_SEGMENTS, _TIMEOUT_S = "/api/v1/segments", 60.0
_FORGET = sql.SQL("UPDATE workbench.segments SET watermark = NULL WHERE name = {}")


class _Cost(msgspec.Struct, frozen=True):
    seconds: float
    cpu_seconds: float


def measure(effort: Effort) -> Measurement:
    """Refresh segments of `effort.stored_millions` of events."""
    stored = effort.stored_millions * 1_000_000
    increments: dict[str, list[_Cost]] = {name: [] for name in _QUERIES}
    whole: dict[str, list[_Cost]] = {name: [] for name in _QUERIES}
    with postgres.running() as server:
        database = postgres.prepared(server, "segments")
        filling.fill_past(database, stored, _DAYS)
        with site.bare_apis(server, database, 1) as (api,):
            filling.settle(server)
            for name, query in _QUERIES.items():
                site.ask(api, database, _SEGMENTS, {"name": name, "sql": query}, _TIMEOUT_S)
            for _ in range(effort.rounds):
                filling.add_events(database, NEW_EVENTS, stored)
                for name in _QUERIES:
                    increments[name].append(_refresh(server, api, database, name))
                    execute(database.dsn, _FORGET.format(sql.Literal(name)))
                    whole[name].append(_refresh(server, api, database, name))
    rows: list[Row] = []
    for name in _QUERIES:
        text = f"segment {name!r}, {NEW_EVENTS:,} new events of {effort.stored_millions} M"
        for unit, of in (("s", "seconds"), ("CPU s", "cpu_seconds")):
            costs, references = ([getattr(cost, of) for cost in costs[name]] for costs in (increments, whole))
            promise = at_most(1.0) if unit == "s" else None
            label = text if promise else "  in the API and Postgres"
            rows.append(row(label, unit, costs, ("whole query", references), promise))
    return Measurement(rows, {})


def _refresh(server: Postgres, service: Service, database: Database, name: str) -> _Cost:
    before, begun = cpu_so_far(server, [service.pid]), time.perf_counter()
    site.ask(service, database, f"{_SEGMENTS}/{name}/refresh", {}, _TIMEOUT_S)
    seconds, after = time.perf_counter() - begun, cpu_so_far(server, [service.pid])
    return _Cost(seconds, sum(after[part] - before[part] for part in ("service", "postgres")))
