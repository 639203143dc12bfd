"""Imports of history: events per second of a new file, of the same rows again, and of a finished import. And exports.

The reference of an import is a bare COPY of the same stored events and keys into a second database; that of an export
is one `wb.sql` that reads the same columns of the same events into a frame.
"""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

from psycopg import sql

from api.clock import from_us
from api.crypto import Keyring
from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.process import run
from bench import postgres, site
from bench.copying import copy_rows
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, rates
from bench.processes import cpu_seconds
from bench.table import at_least, ratio_at_least, ratio_at_most, row
from workbench import Workbench
from workbench.language.codec import encode

EVENTS = 1_000_000
QUICK = 100_000
PEOPLE_EACH = 20  # events per contact
_FIRST_US = 1_735_689_600_000_000  # 2025-01-01; the history spans half a year
_SPAN_US = 15_768_000_000_000
_SELECT = "SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key FROM app_events"
_BEGINNING = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def measure(effort: Effort) -> Measurement:
    """Import into a new database in each of a third of the usual rounds, because a round takes half a minute."""
    events = QUICK if effort.rounds <= 5 else EVENTS  # the first with --quick
    new, again, done, copied = list[Slice](), list[Slice](), list[Slice](), list[Slice]()
    exported, selected = list[float](), list[float]()
    with postgres.running() as server:
        path = server.home / "history.ndjson"
        write(path, events)
        for number in range(max(effort.rounds // 3, 1)):
            database = postgres.prepared(server, f"import_{number}")
            new.append(_imported(server, database, path, events))
            done.append(_imported(server, database, path, events))
            again.append(_imported(server, database, path, events, again=True))
            with site.bare_apis(server, database, 1) as (api,):
                wb = Workbench(f"http://127.0.0.1:{api.port}", database.workbench_key)
                selected.append(_seconds(partial(wb.sql, _SELECT)))
                exported.append(_seconds(partial(wb.export, server.home / f"export_{number}")))
            target = postgres.prepared(server, f"copy_{number}")
            _add_months(target, database)
            copied.append(copy_rows(server, database, target, _BEGINNING))
            for name in (f"import_{number}", f"copy_{number}"):
                postgres.execute(server.admin_dsn, sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
    return Measurement(
        [
            row("import, new events", "events/s", rates(new), None, at_least(30_000)),
            row("  against bare COPY", "events/s", rates(new), ("COPY", rates(copied)), ratio_at_least(0.35)),
            row("  CPU in Postgres", "µs/event", cpu_us(new, "postgres"), ("COPY", cpu_us(copied, "postgres"))),
            row("  CPU in the import", "µs/event", cpu_us(new, "service")),
            row("import, all there already", "events/s", rates(again)),
            row("import, done before", "events/s", rates(done)),
            row(f"export of {events:,} events", "s", exported, ("wb.sql", selected), ratio_at_most(4)),
        ],
        {"new": new, "again": again, "done": done, "copy": copied},
    )


def write(path: Path, events: int) -> None:
    """Write a history in order of time: contacts have several events, and one event in fifty has attributes."""
    with path.open("wb") as file:
        file.writelines(encode(event) + b"\n" for event in _history(events))


def _history(events: int) -> Iterator[dict[str, object]]:
    chance, people = Random(1), set[int]()
    for number in range(events):
        person = chance.randrange(max(events // PEOPLE_EACH, 1))
        event: dict[str, object] = {
            "event": chance.choice(("deposit", "app_open", "trade", "view_page")),
            "contact": {"externalId": f"user-{person}", "email": f"user{person}@example.com"},
            "occurredAt": from_us(_FIRST_US + number * (_SPAN_US // events)).isoformat(),
            "payload": {"amountUsd": number % 1000, "asset": "USDC", "screen": "home", "n": number, "platform": "ios"},
            "idempotencyKey": f"key-{number:032d}",
        }
        if person not in people or chance.random() < 0.02:
            event["attributes"] = {"plan": chance.choice(("free", "pro")), "country": "DE"}
        people.add(person)
        yield event


def _imported(
    server: postgres.Postgres, database: postgres.Database, path: Path, events: int, *, again: bool = False
) -> Slice:
    sources, _ = find_sources([path], ReadOptions(restart=again))
    spent, own, begun = cpu_seconds(server.pid), time.process_time(), time.perf_counter()
    with Rejects(default_rejects_path(path)) as rejects:
        run(import_history(database.dsn, Keyring(postgres.SECRET), "bench", sources, rejects))
    return Slice(
        requests=1,
        accepted=events,
        refused=0,
        seconds=time.perf_counter() - begun,
        statuses={},
        latencies_ms=[],
        cpu={"postgres": cpu_seconds(server.pid) - spent, "service": time.process_time() - own},
    )


def _seconds(ask: Callable[[], object]) -> float:
    begun = time.perf_counter()
    ask()
    return time.perf_counter() - begun


def _add_months(target: postgres.Database, source: postgres.Database) -> None:
    """Create the partitions of one database in another one."""
    with postgres.connect(source.dsn) as connection:
        months = connection.execute(
            "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) "
            "FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = 'workbench.events'::regclass AND c.relkind = 'r'"
        ).fetchall()
    for name, bound in months:
        statement = sql.SQL("CREATE TABLE IF NOT EXISTS workbench.{} PARTITION OF workbench.events {}")
        postgres.execute(target.dsn, statement.format(sql.Identifier(name), sql.SQL(bound)))
