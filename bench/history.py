"""The cost of the history of contacts to ingest: the same events are stored with it and without it.

Two databases get the same events from this process, each on one connection: of new contacts, of returning contacts that
stay as they are, and of those that change one attribute or five. The one without history has no index of changes, and
ingest merges attributes there without noting what they replace. A slice, of 60 single events or five batches of a
hundred, costs the CPU time of parsing and storing them here, and that of the connection's backend in nanoseconds. HTTP
is left out: it costs both the same, and would only bring the ratios closer to 1.

Slices alternate in the order ours, reference, reference, ours; each quad of slices gives one ratio, so drift of the
machine cancels out. The table has the medians of these ratios, and as their spread the 95 % interval of the median
(bootstrap); a promise is kept if all of the interval keeps it. Each round has new connections. The WAL of the same
slices is counted, too: it hardly varies.
"""

import asyncio
import gc
import itertools
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from api.clock import Clock, from_us
from api.crypto import Keyring
from api.ingest import identity, store
from api.ingest.identity import sole_changes
from api.ingest.match import Triggers
from api.ingest.parse import EventReader, ParsedEvent
from api.store.database import Database as Pool
from api.store.query import Call
from bench import postgres
from bench.effort import Effort, Measurement
from bench.figures import Spread, spread
from bench.postgres import SECRET, Database, Postgres
from bench.processes import backend_cpu_seconds
from bench.table import Reference, Row, interval_at_most
from bench.traffic import BATCH, bodies, introductions

_KINDS = {"new": (1, 0), "unchanged": (0, 0), "one attribute": (0, 1), "five attributes": (0, 5)}  # new_every, changing
_SIZES = {"alone": (1, 60), "in batches": (BATCH, 5)}  # events of a transaction, transactions of a slice
_UNCHANGED, _CHANGED = 1.01, 1.05
_QUADS = 12  # of four slices, in each round
_RESAMPLES = 2_000
_ORG_ID = 1
_CLOCK, _KEYRING = Clock(), Keyring(SECRET)
_merge_calls = identity._merge_calls
_Batch = list[bytes]  # the events of a transaction


def _merge_without_note(*arguments: Any) -> list[Call[None]]:
    note, merge = _merge_calls(*arguments)
    assert note.statement.name == b"changes.note_attributes"  # the only call that the bench may leave out
    return [merge]


class SliceCost(msgspec.Struct, frozen=True):
    """CPU time here and in the backend, and bytes of WAL, per event."""

    cpu_us: float
    wal_bytes: float


def measure(effort: Effort) -> Measurement:
    """Alternate between the two databases, for each kind of event, alone and in batches."""
    rows: list[Row] = []
    with postgres.running() as server:
        ours, reference = (postgres.prepared(server, name) for name in ("history", "no_history"))
        postgres.execute(reference.dsn, sql.SQL("DROP INDEX workbench.events_changed"))
        reader = EventReader(_CLOCK, "bench")  # with the identifiers of all returning contacts in its cache
        asyncio.run(_introduce(reader, ours, reference))
        for (kind, (new_every, changing)), (size, (events, batches)) in itertools.product(
            _KINDS.items(), _SIZES.items()
        ):
            slices = _slices(map(_events, bodies(events, new_every, changing)), batches)
            quads = asyncio.run(_alternate(server, reader, (ours, reference), slices, effort.rounds))
            bound = _CHANGED if changing else _UNCHANGED
            rows += _rows(f"history: {kind}, {size}", quads, bound)
    return Measurement(rows, {})


class Ingest:
    """Stores events in one database, on one connection; `history` False: without noting what they change."""

    def __init__(self, reader: EventReader, database: Database, *, history: bool) -> None:
        self._reader, self._history = reader, history
        self._pool = Pool(database.dsn, size=1, hot=True)
        self._keys, self._triggers = _KEYRING.of(_ORG_ID), Triggers(_KEYRING)

    async def __aenter__(self) -> "Ingest":
        await self._pool.open()
        async with self._pool.transaction() as tx:
            self._backend = tx.info.backend_pid
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._pool.close()

    async def store(self, batches: Iterable[_Batch]) -> None:
        vars(store)["sole_changes"] = sole_changes if self._history else lambda plan: {}
        vars(identity)["_merge_calls"] = _merge_calls if self._history else _merge_without_note
        for batch in batches:
            events = [event for raw in batch if isinstance(event := self._read(raw), ParsedEvent)]
            async with self._pool.transaction() as tx:
                await store.store_batch(tx, events, self._triggers, from_us(_CLOCK.now_us()))

    def _read(self, raw: bytes) -> object:
        return self._reader.read(_ORG_ID, self._keys, raw)

    async def cost(self, batches: Sequence[_Batch], admin: psycopg.Connection) -> SliceCost:
        events, wal_before, cpu_before_s = sum(map(len, batches)), _wal_bytes(admin), self._cpu_seconds()
        await self.store(batches)
        cpu_s, wal_bytes = self._cpu_seconds() - cpu_before_s, _wal_bytes(admin) - wal_before
        return SliceCost(cpu_s / events * 1e6, wal_bytes / events)

    def _cpu_seconds(self) -> float:
        return time.process_time() + backend_cpu_seconds(self._backend)


async def _introduce(reader: EventReader, *databases: Database) -> None:
    batches = [_events(body) for body in introductions()]
    for database in databases:
        async with Ingest(reader, database, history=True) as ingest:
            await ingest.store(batches)
        postgres.execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def _slices(batches: Iterator[_Batch], size: int) -> Iterator[list[_Batch]]:
    while True:
        yield list(itertools.islice(batches, size))


async def _alternate(
    server: Postgres,
    reader: EventReader,
    databases: tuple[Database, Database],
    slices: Iterator[list[_Batch]],
    rounds: int,
) -> list[tuple[list[SliceCost], list[SliceCost]]]:
    """Return for each quad the costs of two slices with history and of two without it."""
    ours, reference = databases
    quads = []
    admin = psycopg.connect(server.admin_dsn, autocommit=True)
    for _ in range(rounds):
        async with (
            Ingest(reader, ours, history=True) as with_history,
            Ingest(reader, reference, history=False) as without,
        ):
            for slice_ in itertools.islice(slices, 2):  # plans and caches of new connections
                await with_history.store(slice_)
                await without.store(slice_)
            for _ in range(_QUADS):
                gc.collect()
                gc.disable()
                first, second = itertools.islice(slices, 2)
                order = ((with_history, first), (without, first), (without, second), (with_history, second))
                costs = [await ingest.cost(slice_, admin) for ingest, slice_ in order]
                gc.enable()
                quads.append((costs[::3], costs[1:3]))
    admin.close()
    return quads


def _rows(name: str, quads: list[tuple[list[SliceCost], list[SliceCost]]], bound: float) -> list[Row]:
    rows = []
    for unit, field, promise in (("µs/event", "cpu_us", interval_at_most(bound)), ("B/event", "wal_bytes", None)):
        ours, reference = (
            [statistics.fmean(getattr(cost, field) for cost in quad[side]) for quad in quads] for side in (0, 1)
        )
        ratios = [mine / its for mine, its in zip(ours, reference, strict=True)]
        label = name if promise else "  WAL"
        compared = Reference("no history", spread(reference))
        rows.append(Row(label, spread(ours), unit, compared, _median_interval(ratios), promise))
    return rows


def _median_interval(values: Sequence[float]) -> Spread:
    """Return the median of values with its 95 % interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Spread(statistics.median(values), medians[_RESAMPLES // 40], medians[-_RESAMPLES // 40])


def _events(body: bytes) -> _Batch:
    decoded = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if "events" not in decoded:
        return [body]
    return [bytes(raw) for raw in msgspec.json.decode(decoded["events"], type=list[msgspec.Raw])]


def _wal_bytes(admin: psycopg.Connection) -> int:
    row = admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])
