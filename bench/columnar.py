"""Reports over parts, beside the SQL of the same reports on the same events.

The events are synthesised as parts, and up to two million of them are stored in Postgres as well; both answers must be
equal. A report over parts is counted as the service counts it, in a child process that takes its snapshot itself.
"""

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pyarrow.parquet as pq

from api.clock import to_us
from api.crypto import Keyring
from api.parts import files
from api.parts.count import CountRequest, ReportCounts
from api.query.formats import JsonText, stream
from api.query.gateway import AnalystQuery, Gateway
from api.query.reports import statement
from api.store import parts as store
from api.store.analyst import QueryLimits
from api.store.database import Database
from api.store.parts import PartFile
from bench import parts, postgres
from bench.effort import Effort, Measurement
from bench.table import Row, at_most, ratio_at_most, row
from workbench.language.reports import ActiveUsers, Funnel, Paths, ReportBody, Retention, Revenue, report_query

_ORG = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SINCE = datetime(2026, 8, 1, tzinfo=UTC)
_EVENTS_PER_CONTACT = 20
_STORED_EVENTS = 2_000_000  # more are not stored in Postgres, whose reports they would exceed
_MEMORY_MB = 750
_REPORTS: dict[str, ReportBody] = {
    "funnel of frequent events": Funnel(since=_SINCE, steps=("page.view", "add_to_cart", "checkout")),
    "funnel by country": Funnel(since=_SINCE, steps=("signup", "deposit"), by="country"),
    "retention": Retention(since=_SINCE, start="signup"),
    "active users": ActiveUsers(since=_SINCE),
    "paths": Paths(since=_SINCE, start="signup"),
    "revenue by week and country": Revenue(since=_SINCE, event="deposit", value="amount", by="country", every="week"),
}


def measure(effort: Effort) -> Measurement:
    """Ask each report over parts and by SQL in turn, and compare the answers."""
    return Measurement(compare(effort.stored_millions * 1_000_000), {})


def compare(events: int) -> list[Row]:
    """Return the figures of all reports over so many events."""
    with postgres.running() as server:
        database = postgres.prepared(server, "columnar")
        written = parts.synthesise(server.home, _ORG, events, events // _EVENTS_PER_CONTACT, to_us(_SINCE))
        asyncio.run(_list(database.dsn, server.home, written))
        is_stored = events <= _STORED_EVENTS
        if is_stored:
            # COPY is not for tables with row-level security, except for a superuser.
            admin_dsn = urlsplit(server.admin_dsn)._replace(path=urlsplit(database.dsn).path).geturl()
            _store(admin_dsn, [files.path(server.home, _ORG, part.file) for part in written], events)
        rows: list[Row] = []
        for name, report in _REPORTS.items():
            rows += asyncio.run(_ask(database.dsn, server.home, f"{name}, {events / 1e6:g} M", report, is_stored))
    return rows


async def _list(dsn: str, folder: Path, written: list[PartFile]) -> None:
    """List the files as the builder does. Nothing is in the heap that is not in them."""
    at = datetime.now(UTC)
    buckets = max(part.bucket for part in written) + 1
    async with Database(dsn) as database, database.transaction() as tx:
        _, cluster = await store.find_oldest_open(tx)
        await store.begin_parts(tx, _ORG, buckets, files.make_folder_id(folder), cluster)
        await store.advance_progress(tx, _ORG, 0, 2, parts.KEYS, at)
        await store.add_event_numbers(tx, _ORG, range(len(parts.EVENTS)), parts.EVENTS)
        await store.add_parts(tx, _ORG, [msgspec.structs.replace(part, month="other") for part in written], at)


def _store(dsn: str, paths: list[Path], events: int) -> None:
    """Store the events of files in Postgres, with ids that order events like the files."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO workbench.contacts (org_id, id, number, attributes, created_at, updated_at)"
            " SELECT 1, lpad(n::text, 32, '0')::uuid, n, '{}', %s, %s FROM generate_series(0, %s) n",
            (_SINCE, _SINCE, events // _EVENTS_PER_CONTACT),
        )
        columns = "org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, stored_in"
        with connection.cursor().copy(f"COPY workbench.events ({columns}) FROM STDIN") as copy:
            for path in paths:
                for batch in pq.ParquetFile(path).iter_batches(
                    columns=["contact", "event", "occurred_at", "created_at", "id", "payload"]
                ):
                    for contact, event, at, created_at, event_id, payload in zip(
                        *(column.to_pylist() for column in batch.columns), strict=True
                    ):
                        moments = (_EPOCH + timedelta(microseconds=us) for us in (at, created_at))
                        named = f"{contact:032d}", parts.EVENTS[event], *moments, payload, event_id.hex()
                        copy.write_row((_ORG, event_id.hex(), *named, 1))
        connection.execute("VACUUM ANALYZE")


async def _ask(dsn: str, folder: Path, name: str, report: ReportBody, is_stored: bool) -> list[Row]:
    body = msgspec.to_builtins(report)
    request = msgspec.json.encode(CountRequest(dsn, str(folder), _ORG, report.name, body, None))
    counted, seconds, cpu_s, memory_mb = await asyncio.to_thread(_count, request)
    if counted.reason:
        raise RuntimeError(f"{name} was left to the SQL: {counted.reason}")
    memory = row(f"{name}: memory", "MB", [memory_mb], promise=at_most(_MEMORY_MB))
    if not is_stored:
        return [row(name, "s", [seconds]), row(f"{name}: CPU", "s", [cpu_s]), memory]
    async with Database(dsn) as database:
        gateway = Gateway(database, Keyring(postgres.SECRET), QueryLimits(step_seconds=600, watch_seconds=600))
        from_parts, _ = await _rows(gateway, report, counted.counted)
        by_sql, sql_s = await _rows(gateway, report, ())
    if from_parts != by_sql:
        raise RuntimeError(f"{name}: {from_parts} from parts, {by_sql} by SQL")
    return [row(name, "s", [seconds], ("SQL", [sql_s]), ratio_at_most(0.5)), row(f"{name}: CPU", "s", [cpu_s]), memory]


def _count(request: bytes) -> tuple[ReportCounts, float, float, float]:
    """Count in a child process; return also its seconds, its seconds of CPU and its megabytes."""

    code = (
        "import resource, sys\nfrom api.parts.count import main\nmain()\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "sys.stderr.write(f'{used.ru_utime + used.ru_stime} {used.ru_maxrss}')"
    )
    begun = time.perf_counter()
    child = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, check=True)
    seconds = time.perf_counter() - begun
    cpu_s, kilobytes = child.stderr.split()[-2:]
    return msgspec.json.decode(child.stdout, type=ReportCounts), seconds, float(cpu_s), float(kilobytes) / 1_000


async def _rows(gateway: Gateway, report: ReportBody, counted: tuple[str, ...]) -> tuple[Any, float]:
    query = report_query(report, statement, counted)
    begun = time.perf_counter()
    async with gateway.run(AnalystQuery(_ORG, query.text, query.params, True)) as result:
        text = b"".join([piece async for piece in stream(result, JsonText)])
    return msgspec.json.decode(text), time.perf_counter() - begun
