"""The import of history: files of past events, read by the rules of live events except for their age.

`created_at` of an imported event is the time when it occurred, so it is stored in the monthly partition of that time.
It triggers nothing and has no rate limit. Otherwise an import is live ingest on large batches: `store_history` writes a
batch while the next one is read and prepared. Its transaction also records the position in the file: an import that
stops, for whatever reason, continues where it stopped, and every row of a file is stored exactly once. Every event has
an idempotency key, so files that overlap store nothing twice. Batches are committed without waiting for the disk; the
transaction that finishes a file waits, and covers them.

If Postgres refuses a value, the batch is divided in halves, until the event is alone and can be rejected. Attributes
for which a contact has no room are left out, and reported.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Self

import msgspec

from api.catalog.counts import late_imported_events
from api.clock import Clock, from_us, uuid7
from api.crypto import Keyring
from api.imports.errors import ImportReport, Rejects, ReportedRow
from api.imports.formats import HistoryFile
from api.imports.row import Row
from api.ingest.parse import EventReader, ParsedEvent
from api.ingest.store import CANNOT_BE_STORED, PreparedEvents, prepare, store_history
from api.store import imports as store
from api.store.access import find_organization
from api.store.database import Database, DatabaseUnavailableError, RefusedDataError, TransactionConflictError
from api.store.events import ATTRIBUTES_TOO_LARGE
from api.store.query import COMMIT, run
from workbench.language.problem import Problems

BATCH_ROWS = 2_000  # stored in less than 0.1 s, because live ingest waits at most 0.5 s for the locks of a batch
BATCH_BYTES = 1_000_000  # a batch of large events has fewer rows, to take no longer
STEP_ROWS = 25  # read in 0.3 ms: the batch that is being stored waits that long for each part that it sends or receives
STORE_PAUSES_S = (0.1, 0.2, 0.4, 0.8)  # before further attempts
MAX_CACHED_CONTACTS = 200_000  # in a history the same contacts send many events

OLDEST_MONTH = datetime(2010, 1, 1, tzinfo=UTC)  # older events share one partition
# Creating a partition takes an exclusive lock on the default partition. A reader may hold a lock on it, so the wait is
# short and repeated: a long one would block all readers that come after it.
PARTITION_PAUSES_S = (0.3,) * 99
_DAY_US = 86_400_000_000
_BATCHES_LOST = "the progress of this file went back: Postgres has crashed, or another import of it started over"


class UnknownOrganizationError(Exception):
    """The organization of an import does not exist."""


class ImportStatus(msgspec.Struct, frozen=True):
    """The progress of an import: the report so far, the current file, and the share of all bytes, from 0 to 1."""

    report: ImportReport
    file: str
    share: float


Listener = Callable[[ImportStatus], None]


async def import_history(
    dsn: str,
    keyring: Keyring,
    org_name: str,
    sources: list[HistoryFile],
    rejects: Rejects,
    listener: Listener | None = None,
) -> ImportReport:
    """Import files for an organization, one after the other. `listener` is called after every transaction.

    Raises UnknownOrganizationError, UnreadableFileError, and DatabaseUnavailableError if Postgres goes away. Call it
    again to continue.
    """
    database = Database(dsn, size=2, statement_ms=60_000, hot=True)
    await database.open()
    try:
        clock = Clock()
        await database.calibrate(clock)
        async with database.transaction() as tx:
            org_id = await find_organization(tx, org_name)
            max_locks = await store.max_locks(tx)
        if org_id is None:
            raise UnknownOrganizationError(
                f"Organization not found: {org_name}. Create it with: workbench org create {org_name}"
            )
        importer = _Importer(database, clock, keyring, org_id, max_locks, sources, rejects, listener)
        # Rows create no cyclic garbage, and scanning thousands of them takes a tenth of the time of an import.
        before = gc.get_threshold()
        gc.set_threshold(100_000)
        try:
            for source in sources:
                await importer.store_file(source)
        finally:
            gc.set_threshold(*before)
        return importer.report
    finally:
        await database.close()


class Batch(msgspec.Struct):
    """Rows up to `last_line` that one transaction stores: events, their lines and texts, and rejected rows.

    `prepared`: the events once they are prepared.
    """

    events: list[ParsedEvent] = []
    rows: list[tuple[int, bytes]] = []
    rejected: list[ReportedRow] = []
    last_line: int = 0
    prepared: PreparedEvents | None = None

    def __len__(self) -> int:
        return len(self.events) + len(self.rejected)

    def halves(self) -> tuple[Self, Self]:
        """Divide a batch of at least two events."""
        middle = len(self.events) // 2
        line = self.rows[middle - 1][0]
        before = [row for row in self.rejected if row.line <= line]
        return (
            type(self)(self.events[:middle], self.rows[:middle], before, line),
            type(self)(self.events[middle:], self.rows[middle:], self.rejected[len(before) :], self.last_line),
        )


class _Importer:
    """Stores files for one organization. `report` adds up what was done so far."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        keyring: Keyring,
        org_id: int,
        max_locks: int,
        sources: list[HistoryFile],
        rejects: Rejects,
        listener: Listener | None,
    ) -> None:
        self.report = ImportReport()
        self._database, self._clock, self._org_id, self._org_keys = database, clock, org_id, keyring.of(org_id)
        self._rejects, self._listener = rejects, listener
        self._max_identifiers = max_locks * 3 // 4  # of a batch; each may need a lock
        self._reader = EventReader(clock, "", MAX_CACHED_CONTACTS)
        self._notes_source = uuid7(clock.unique_now_us())  # under which late events are noted
        self._days: set[int] = set()
        self._months: set[datetime] = set()
        self._several_files = len(sources) > 1
        self._total_bytes = max(sum(source.size for source in sources), 1)
        self._done_bytes, self._done_lines = 0, 0

    async def store_file(self, source: HistoryFile) -> None:
        """Store every row that an earlier run has not stored."""
        async with self._database.transaction() as tx:
            if source.restart:
                await store.forget_import(tx, self._org_id, source.digest)
            earlier = await store.begin_import(tx, self._org_id, source.digest, source.name, self._clock.now())
        self._done_lines = earlier.lines
        self.report = self.report.plus(ImportReport(before=earlier.lines))
        if earlier.finished_at is None:
            with source.open(earlier.lines) as (rows, share):
                next_batch = asyncio.create_task(self._read(source, rows))
                try:
                    while batch := await next_batch:
                        done_bytes = self._done_bytes + share(batch.last_line) * source.size
                        next_batch = asyncio.create_task(self._read(source, rows))
                        await self._store(source, batch)
                        self._notify(source, done_bytes)
                finally:
                    next_batch.cancel()
                    await asyncio.gather(next_batch, return_exceptions=True)
            try:
                async with self._database.transaction() as tx:
                    await store.finish_import(tx, self._org_id, source.digest, self._done_lines, self._clock.now())
            except RefusedDataError as error:
                raise DatabaseUnavailableError(_BATCHES_LOST) from error
        self._done_bytes += source.size
        self._notify(source, self._done_bytes)

    async def _read(self, source: HistoryFile, rows: Iterator[Row]) -> Batch:
        """Read the next batch; it is empty at the end of the file."""
        batch = Batch()
        size = identifiers = 0
        while len(batch) < BATCH_ROWS and size < BATCH_BYTES and identifiers < self._max_identifiers:
            step = list(islice(rows, min(STEP_ROWS, BATCH_ROWS - len(batch))))
            if not step:
                break
            for line, text, problems in step:
                size += len(text)
                event = problems or self._reader.read(self._org_id, self._org_keys, text, past=True)
                if isinstance(event, ParsedEvent):
                    batch.events.append(event)
                    batch.rows.append((line, text))
                    identifiers += len(event.keys)
                else:
                    batch.rejected.append(self._reject(source, line, text, event))
            batch.last_line = step[-1][0]
            await asyncio.sleep(0)
        batch.prepared = prepare(batch.events, self._clock.now())
        return batch

    def _reject(self, source: HistoryFile, line: int, text: bytes, problems: Problems) -> ReportedRow:
        """Write a row to the file of rejected rows; return its entry in the report."""
        row = ReportedRow(line, problems, source.name if self._several_files else "")
        self._rejects.add(source, row, text)
        return row

    async def _store(self, source: HistoryFile, batch: Batch, *, fit: bool = False) -> None:
        """Store a batch. If Postgres refuses it, store its halves; an event that it refuses alone is rejected."""
        try:
            await self._commit_with_retries(source, batch, fit)
        except RefusedDataError as error:
            if str(error) == store.BATCHES_LOST:
                raise DatabaseUnavailableError(_BATCHES_LOST) from error
            if str(error) == ATTRIBUTES_TOO_LARGE and not fit:
                await self._store(source, batch, fit=True)
            elif len(batch.events) > 1:
                for half in batch.halves():
                    await self._store(source, half)
            elif batch.events:
                row = self._reject(source, *batch.rows[0], CANNOT_BE_STORED)
                rejected = sorted([*batch.rejected, row], key=attrgetter("line"))
                await self._store(source, Batch(rejected=rejected, last_line=batch.last_line))
            else:
                raise

    async def _commit_with_retries(self, source: HistoryFile, batch: Batch, fit: bool) -> None:
        days = {event.occurred_us // _DAY_US for event in batch.events} - self._days
        self._days |= days
        months = {from_us(day * _DAY_US).replace(day=1) for day in days} - self._months
        self._months |= months
        for month in sorted(months):
            if month >= OLDEST_MONTH:
                await _with_retries(partial(self._add_month, month), PARTITION_PAUSES_S)
        self._rejects.flush()  # before a transaction records that these lines are done
        await _with_retries(partial(self._commit, source, batch, fit), STORE_PAUSES_S)

    async def _commit(self, source: HistoryFile, batch: Batch, fit: bool) -> None:
        """Store events and the progress of the file in one transaction, so that every row is stored exactly once."""
        at = self._clock.now()
        async with self._database.transaction() as tx:
            stored = await store_history(tx, self._org_id, batch.prepared or prepare(batch.events, at), at, fit=fit)
            dated = [(event.body.name, event.occurred_us) for event in stored.events]
            late = late_imported_events((self._org_id, self._notes_source), dated, stored.counting, at)
            duplicates = len(batch.events) - len(stored.events)
            progress = store.ImportProgress(batch.last_line, len(stored.events), duplicates, len(batch.rejected))
            advance = store.advance_import(self._org_id, source.digest, self._done_lines, progress, at)
            await run(tx, *stored.writes, *late, advance, store.commit_without_flush(), COMMIT)
        self._done_lines = batch.last_line
        rejected, file = tuple(batch.rejected), source.name if self._several_files else ""
        warned = tuple(
            ReportedRow(line, stored.warnings[event.event_id], file)
            for (line, _), event in zip(batch.rows, batch.events, strict=True)
            if event.event_id in stored.warnings
        )
        self.report = self.report.plus(
            ImportReport(
                read=len(batch),
                stored=len(stored.events),
                duplicates=duplicates,
                rejected=len(rejected),
                rejected_rows=rejected,
                warned=len(warned),
                warned_rows=warned,
            )
        )

    async def _add_month(self, month: datetime) -> None:
        """Create a monthly partition, unless it exists."""
        async with self._database.transaction() as tx:
            await store.add_month(tx, month)

    def _notify(self, source: HistoryFile, done_bytes: float) -> None:
        if self._listener is not None:
            self._listener(ImportStatus(self.report, source.name, min(done_bytes / self._total_bytes, 1.0)))


async def _with_retries(attempt: Callable[[], Awaitable[None]], pauses_s: Iterable[float]) -> None:
    """Repeat an attempt after each pause as long as it conflicts with other transactions."""
    for pause_s in pauses_s:
        with suppress(TransactionConflictError):
            await attempt()
            return
        await asyncio.sleep(pause_s)
    await attempt()
