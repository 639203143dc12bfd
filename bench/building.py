"""What parts cost: building them, their place on the disk, and ingest with the index that the builder reads.

The events are stored in the order of time, by transactions of fifty, as ingest stores them. Their parts are built, and
dropped for the next round. The time of Postgres is that of all its processes.
"""

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from api.clock import to_us, uuid7
from api.parts import build, files
from api.parts.builders import of_organization
from api.store import parts as store
from api.store.database import Database, key_value_dsn
from bench import batches, parts, postgres, singles, site
from bench.effort import Effort, Measurement
from bench.figures import Slice
from bench.processes import cpu_seconds
from bench.sending import accounted, send
from bench.table import Row, at_most, ratio_at_least, ratio_at_most, row

_ORG = 1
_EVENTS_PER_CONTACT = 20
_EVENTS_PER_TRANSACTION = 50
_MAX_EVENTS = 10_000_000
_DAYS = 28
_ROUNDS = 3
_TRANSACTIONS = "DO $$ BEGIN FOR number IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
_BUILD_US, _DISK, _INGEST = 4.0, 0.10, 0.95


def measure(effort: Effort) -> Measurement:
    """Build the parts of `stored_millions`; send events to a database with the builder's index, and to one without."""
    with postgres.running() as server:
        rows = _build(server, min(effort.stored_millions * 1_000_000, _MAX_EVENTS))
        ingest_rows, slices = _ingest(server, effort)
    return Measurement(rows + ingest_rows, slices)


def _build(server: postgres.Postgres, events: int) -> list[Row]:
    database = postgres.prepared(server, "building")
    admin_dsn = postgres.admin_dsn(server, database)
    _store(admin_dsn, server.home / "synthesised", events)
    folder = server.home / "built"
    rounds = [asyncio.run(_build_once(server, key_value_dsn(database.dsn), folder)) for _ in range(_ROUNDS)]
    builder, backends = ([spent / events * 1e6 for spent in of_kind] for of_kind in zip(*rounds, strict=True))
    both = [*map(sum, zip(builder, backends, strict=True))]
    built = asyncio.run(_listed_bytes(key_value_dsn(database.dsn))) / events
    name = f"parts of {events / 1e6:g} M events"
    return [
        row(f"{name}: builder, CPU", "µs/event", builder),
        row(f"{name}: Postgres, CPU", "µs/event", backends),
        row(f"{name}: both, CPU", "µs/event", both, promise=at_most(_BUILD_US)),
        row(
            f"{name}: disk",
            "B/event",
            [built],
            ("events in Postgres", [_stored_bytes(admin_dsn) / events]),
            ratio_at_most(_DISK),
        ),
    ]


def _store(admin_dsn: str, folder: Path, events: int) -> None:
    """Store events of the last weeks in the order of time."""
    since = datetime.now(UTC) - timedelta(days=_DAYS)
    contacts = events // _EVENTS_PER_CONTACT
    written = parts.synthesise(folder, _ORG, events, contacts, to_us(since), _DAYS)
    table = pa.concat_tables([pq.read_table(files.path(folder, _ORG, part.file)) for part in written])
    table = table.take(pa.array(np.argsort(table["occurred_at"].to_numpy())))
    stored_in = pa.array(2 + np.arange(len(table)) // _EVENTS_PER_TRANSACTION)
    table = table.set_column(table.schema.get_field_index("stored_in"), "stored_in", stored_in)
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        parts.store_contacts(connection, range(contacts), since)
        parts.store_events(connection, table.to_batches(50_000), map(uuid7, table["created_at"].to_pylist()))
        connection.execute("VACUUM ANALYZE")
        # Builders read what is below the oldest open transaction, so that many transactions have to end.
        connection.execute(_TRANSACTIONS.format(stored_in[-1]))


async def _build_once(server: postgres.Postgres, dsn: str, folder: Path) -> tuple[float, float]:
    """Build all parts anew; return the CPU seconds of this process and of Postgres."""
    async with Database(dsn) as database:
        await build.drop(database, folder, _ORG, datetime.now(UTC))
        async with of_organization(database, _ORG) as own:
            before, begun = cpu_seconds(server.pid), time.process_time()
            await build.build(own, folder, _ORG, lambda: datetime.now(UTC))
            seconds = time.process_time() - begun
    return seconds, cpu_seconds(server.pid) - before


async def _listed_bytes(dsn: str) -> int:
    """Return the bytes of the files, without those that were merged and are deleted soon."""
    async with Database(dsn, org=str(_ORG)) as database, database.transaction() as tx:
        return (await store.summarize_parts(tx, _ORG)).size


def _stored_bytes(dsn: str) -> int:
    """Return the bytes of the events in Postgres, with their indexes."""
    with postgres.connect(dsn) as connection:
        found = connection.execute(
            "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = %s::regclass",
            ["workbench.events"],
        ).fetchone()
    assert found is not None
    return int(found[0])


def _ingest(server: postgres.Postgres, effort: Effort) -> tuple[list[Row], dict[str, list[Slice]]]:
    """Alternate between a database with the index of the builder and one without it."""
    databases = postgres.prepared(server, "with_index"), postgres.prepared(server, "without_index")
    postgres.execute(databases[1].dsn, sql.SQL("DROP INDEX workbench.events_stored"))
    rows: list[Row] = []
    slices: dict[str, list[Slice]] = {}
    with (
        site.apis(server, databases[0], 1) as (api,),
        site.apis(server, databases[1], 1) as (without,),
        accounted(databases[0]) as sent,
        accounted(databases[1]) as sent_without,
    ):
        for size, order_of in {"singles": singles.order_of_singles, "batches": batches.order_of_batches}.items():
            pairs = (order_of(databases[0], effort), api, sent), (order_of(databases[1], effort), without, sent_without)
            taken: tuple[list[Slice], list[Slice]] = ([], [])
            for number, position in itertools.product(range(effort.rounds + 1), range(2)):
                order, service, of_database = pairs[position]
                of_database.append(send(server, order, service))
                if number:  # the first round warms up
                    taken[position].append(of_database[-1])
            name = f"ingest with parts: {size}"
            ours, reference = map(_per_cpu_second, taken)
            rows.append(row(name, "events/s", ours, ("without", reference), ratio_at_least(_INGEST)))
            slices |= {name: taken[0], f"{name}, without": taken[1]}
    return rows, slices


def _per_cpu_second(slices: list[Slice]) -> list[float]:
    """Return the events for each second of a core of API and Postgres: others may use the machine, too."""
    return [slice_.accepted / (slice_.cpu["service"] + slice_.cpu["postgres"]) for slice_ in slices]
