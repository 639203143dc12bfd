"""Reports over parts, beside their SQL on the same events, and beside DuckDB and polars on the same files.

The events are synthesised as parts. Up to ten million of them are stored in Postgres as well; both answers must be
equal. A report over parts is counted as the service counts it, in a child process that takes its snapshot itself. As
there, the process waits for the report already. Only after the pages of the files are dropped, its start is part of the
time. With `BENCH_PARTS=FOLDER` the files are kept in a folder, where the next run finds them: a hundred million events
need 4 GB.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from api.clock import to_us, uuid7
from api.crypto import Keyring
from api.parts import files
from api.parts.count import CountRequest, ReportCounts
from api.parts.turns import progress_file
from api.private_files import make_folder
from api.query.formats import JsonText, stream
from api.query.gateway import AnalystQuery, Gateway
from api.query.reports import statement
from api.store import parts as store
from api.store.analyst import QueryLimits
from api.store.database import Database
from api.store.parts import PartFile
from bench import duckdb_polars, parts, postgres
from bench.effort import Effort, Measurement
from bench.table import Row, at_most, ratio_at_most, row
from workbench.language.reports import ActiveUsers, Funnel, Paths, ReportBody, Retention, Revenue, report_query

_ORG = 1
_SINCE = datetime(2026, 8, 1, tzinfo=UTC)
_EVENTS_PER_CONTACT = 20
_STORED_EVENTS = 10_000_000  # more are not stored in Postgres, whose reports they would exceed
_CLOSED = 2  # the number of the first transaction whose events are in no file
_NEW_EVENTS, _EVENTS_PER_TRANSACTION = 100_000, 50
_MEMORY_MB = 750
_ROUNDS = 3
_NEW_EVENTS_S = 0.3
_TO_SQL = 0.05  # of the time that the SQL takes over ten million events
_HOT_S, _COLD_S, _SUMS_S = 5.0, 8.0, 3.0  # promised for a hundred million events on two idle cores
_MANY_EVENTS = 100_000_000
_REPORTS: dict[str, ReportBody] = {
    duckdb_polars.FUNNEL: Funnel(since=_SINCE, steps=("page.view", "add_to_cart", "checkout")),
    "funnel by country": Funnel(since=_SINCE, steps=("signup", "deposit"), by="country"),
    duckdb_polars.RETENTION: Retention(since=_SINCE, start="signup"),
    duckdb_polars.ACTIVE_USERS: ActiveUsers(since=_SINCE),
    duckdb_polars.PATHS: Paths(since=_SINCE, start="signup"),
    duckdb_polars.REVENUE: Revenue(since=_SINCE, event="deposit", value="amount", by="country", every="week"),
}


def measure(effort: Effort) -> Measurement:
    """Ask each report over parts and by SQL in turn, and compare the answers."""
    return Measurement(compare(effort.stored_millions * 1_000_000), {})


def compare(events: int) -> list[Row]:
    """Return the figures of all reports over so many events."""
    with postgres.running() as server:
        database = postgres.prepared(server, "columnar")
        folder = Path(os.environ.get("BENCH_PARTS", server.home))
        written = _synthesised(folder, events)
        asyncio.run(_list(database.dsn, folder, written))
        paths = [files.path(folder, _ORG, part.file) for part in written]
        admin_dsn = postgres.admin_dsn(server, database)
        if events <= _STORED_EVENTS:
            _store(admin_dsn, paths, events)
            asyncio.run(_lift_limits(admin_dsn, database.dsn))
        rows: list[Row] = []
        for name, report in _REPORTS.items():
            rows += _ask(database.dsn, folder, name, report, events, paths)
        _store_new(admin_dsn, server.home / "new", events)
        return [*rows, _ask_with_new_events(database.dsn, folder, events)]


def _synthesised(folder: Path, events: int) -> list[PartFile]:
    """Return the files of so many events in a folder, which are made there if it has none."""
    listing = folder / f"{events}.json"
    if not listing.exists():
        written = parts.synthesise(folder, _ORG, events, events // _EVENTS_PER_CONTACT, to_us(_SINCE))
        listing.write_bytes(msgspec.json.encode(written))
    return msgspec.json.decode(listing.read_bytes(), type=list[PartFile])


async def _list(dsn: str, folder: Path, written: list[PartFile]) -> None:
    """List the files as the builder does. There are no unfiled rows."""
    at = datetime.now(UTC)
    buckets = max(part.bucket for part in written) + 1
    async with Database(dsn) as database, database.transaction() as tx:
        _, cluster = await store.find_oldest_open(tx)
        await store.begin_parts(tx, _ORG, buckets, files.make_folder_id(folder), cluster)
        await store.advance_progress(tx, _ORG, 0, _CLOSED, parts.KEYS, at)
        await store.add_event_numbers(tx, _ORG, range(len(parts.EVENTS)), parts.EVENTS)
        await store.add_parts(tx, _ORG, [msgspec.structs.replace(part, month="other") for part in written], at)


def _store(dsn: str, paths: list[Path], events: int) -> None:
    """Store the events of files in Postgres, with ids that order events like the files."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        parts.store_contacts(connection, range(events // _EVENTS_PER_CONTACT + 1), _SINCE)
        for path in paths:
            with pq.ParquetFile(path) as file:
                ids = (value.hex() for batch in file.iter_batches(columns=["id"]) for value in batch["id"].to_pylist())
                parts.store_events(connection, file.iter_batches(), ids)
        connection.execute("VACUUM ANALYZE")


async def _lift_limits(admin_dsn: str, dsn: str) -> None:
    """Let readers write temporary files without a limit: with it, the SQL over ten million events is refused."""
    async with (
        Database(dsn) as database,
        _gateway(database).run(AnalystQuery(_ORG, "SELECT 1 AS one", {}, True)) as result,
    ):
        assert [rows async for rows in stream(result, JsonText)]
    postgres.lift_temp_file_limit(admin_dsn)


def _gateway(database: Database) -> Gateway:
    limits = QueryLimits(step_seconds=600, watch_seconds=600, answer_seconds=600)
    return Gateway(database, Keyring(postgres.SECRET), limits)


def _store_new(dsn: str, folder: Path, events: int) -> None:
    """Store events of some of the contacts that are in no file yet, with the numbers of later transactions."""
    contacts = np.unique(np.linspace(0, events // _EVENTS_PER_CONTACT - 1, _NEW_EVENTS // 5).astype(np.int64))
    (written,) = parts.synthesise(folder, _ORG, _NEW_EVENTS, len(contacts), to_us(_SINCE), days=28)
    table = pq.read_table(files.path(folder, _ORG, written.file))
    for name, column in {
        "contact": contacts[table["contact"].to_numpy()],
        "stored_in": _CLOSED + np.arange(len(table)) // _EVENTS_PER_TRANSACTION,
    }.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(column))
    with psycopg.connect(dsn, autocommit=True) as connection:
        if events > _STORED_EVENTS:
            parts.store_contacts(connection, contacts.tolist(), _SINCE)
        parts.store_events(connection, [table], map(uuid7, table["created_at"].to_pylist()))
        connection.execute("VACUUM ANALYZE workbench.events")


def _ask_with_new_events(dsn: str, folder: Path, events: int) -> Row:
    """Return how much longer a report takes with these events than without them, which is alternated."""
    question = duckdb_polars.FUNNEL
    request = _request(dsn, folder, _REPORTS[question])
    longer = []
    with postgres.connect(dsn) as connection:
        for _ in range(_ROUNDS):
            runs = []
            for closed in (_CLOSED, _CLOSED + _NEW_EVENTS):
                connection.execute("UPDATE workbench.part_progress SET closed = %s", [closed])
                runs.append(_run(_COUNT, request, waits=True))
            longer.append(runs[0].seconds - runs[1].seconds)
    name = f"{question}, {events / 1e6:g} M: more for {_NEW_EVENTS:,} new"
    return row(name, "s", longer, promise=at_most(_NEW_EVENTS_S))


def _request(dsn: str, folder: Path, report: ReportBody) -> bytes:
    progress = progress_file(folder, _ORG)
    make_folder(progress.parent)
    progress.touch()
    return msgspec.json.encode(CountRequest(dsn, str(folder), _ORG, report.name, msgspec.to_builtins(report), None))


def _ask(dsn: str, folder: Path, question: str, report: ReportBody, events: int, paths: list[Path]) -> list[Row]:
    """Return the figures of a report: counted from parts, with the pages of the files dropped, and by others."""
    name = f"{question}, {events / 1e6:g} M"
    request = _request(dsn, folder, report)
    counted = [_run(_COUNT, request, waits=True) for _ in range(_ROUNDS)]
    _drop_pages(paths)
    cold = _run(_COUNT, request)
    answer = msgspec.json.decode(counted[0].output, type=ReportCounts)
    if answer.reason:
        raise RuntimeError(f"{name} was left to the SQL: {answer.reason}")
    hot = [run.seconds for run in counted]
    is_many = events >= _MANY_EVENTS
    hot_bound = _SUMS_S if question == duckdb_polars.REVENUE else _HOT_S
    rows = [
        row(name, "s", hot, promise=at_most(hot_bound) if is_many else None),
        row(f"{name}: cold", "s", [cold.seconds], promise=at_most(_COLD_S) if is_many else None),
        row(f"{name}: CPU", "s", [run.cpu_s for run in counted]),
        row(f"{name}: memory", "MB", [run.memory_mb for run in counted], promise=at_most(_MEMORY_MB)),
    ]
    for engine, questions in (("duckdb", duckdb_polars.DUCKDB), ("polars", duckdb_polars.POLARS)):
        if question in questions and find_spec(engine) is not None:
            other = _run((sys.executable, "-m", "bench.duckdb_polars", engine, question, str(paths[0].parent)))
            if int(other.output) != (expected := _number_of(question, answer)):
                raise RuntimeError(f"{name}: {expected} from parts, {other.output.decode()} by {engine}")
            its_name = f"{name}: {engine}"
            rows += [
                row(f"{its_name}, CPU", "s", [other.cpu_s]),
                row(f"{its_name}, memory", "MB", [other.memory_mb]),
                row(its_name, "s", [other.seconds], ("from parts", hot[:1])),
            ]
    if events <= _STORED_EVENTS:
        bound = _TO_SQL if events == _STORED_EVENTS else 1.0
        rows.append(asyncio.run(_compare_with_sql(dsn, name, report, answer, hot[-1], bound)))
    return rows


async def _compare_with_sql(
    dsn: str, name: str, report: ReportBody, answer: ReportCounts, hot_s: float, bound: float
) -> Row:
    async with Database(dsn, statement_ms=600_000) as database:
        gateway = _gateway(database)
        from_parts, parts_s = await _rows(gateway, report, answer.counted)
        by_sql, sql_s = await _rows(gateway, report, ())
    if from_parts != by_sql:
        raise RuntimeError(f"{name}: {from_parts} from parts, {by_sql} by SQL")
    return row(f"{name}: and by SQL", "s", [hot_s + parts_s], ("SQL", [sql_s]), ratio_at_most(bound))


def _number_of(question: str, answer: ReportCounts) -> int:
    """Return the number of a report that `bench.duckdb_polars` gives as well."""
    records = msgspec.json.decode(answer.counted[0])
    match question:
        case duckdb_polars.FUNNEL:
            return int(records["steps"][-1]["contacts"])
        case duckdb_polars.RETENTION:
            return sum(int(record["contacts"]) for record in records["returned"])
        case duckdb_polars.ACTIVE_USERS:
            return sum(int(record["contacts"]) for record in records["periods"])
        case duckdb_polars.PATHS:
            return max(int(record["contacts"]) for record in records["paths"])
        case _:
            return sum(int(Decimal(record["total"]) * 1_000_000) for record in records["totals"])


def _drop_pages(paths: list[Path]) -> None:
    """Have the kernel forget the content of files, so that the next reader reads the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class _Run(NamedTuple):
    """A process that has ended: its seconds, its seconds of CPU, and its megabytes."""

    output: bytes
    seconds: float
    cpu_s: float
    memory_mb: float


_COUNT = (sys.executable, "-P", "-m", "api.parts.count")
# The child of a small process, because Linux counts the memory of the process that started it.
_MEASURE = """
import resource, subprocess, sys, time
waits, *command = sys.argv[1:]
request = sys.stdin.buffer.read()
begun = time.perf_counter()
child = subprocess.Popen(command, stdin=subprocess.PIPE)
while waits == "True" and resource.prlimit(child.pid, resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
    time.sleep(0.01)  # its imports are not done yet
    begun = time.perf_counter()
child.communicate(request)
seconds = time.perf_counter() - begun
used = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.stderr.write(f"{seconds} {used.ru_utime + used.ru_stime} {used.ru_maxrss}")
sys.exit(child.returncode)
"""


def _run(command: Sequence[str], request: bytes = b"", *, waits: bool = False) -> _Run:
    """Run a process with a request on its standard input. `waits`: which it gets once it waits for it."""
    measuring = (sys.executable, "-c", _MEASURE, str(waits), *command)
    child = subprocess.run(measuring, input=request, capture_output=True, check=True)
    seconds, cpu_s, kilobytes = child.stderr.split()[-3:]
    return _Run(child.stdout, float(seconds), float(cpu_s), float(kilobytes) / 1_000)


async def _rows(gateway: Gateway, report: ReportBody, counted: tuple[str, ...]) -> tuple[Any, float]:
    query = report_query(report, statement, counted)
    begun = time.perf_counter()
    async with gateway.run(AnalystQuery(_ORG, query.text, query.params, True)) as result:
        text = b"".join([piece async for piece in stream(result, JsonText)])
    return msgspec.json.decode(text), time.perf_counter() - begun
