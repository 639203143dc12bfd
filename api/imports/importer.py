"""The import of history: files of past events, read by the rules of live events except for their age.

An imported event is created when it occurred, so it is stored in the monthly partition of that time. It triggers
nothing and has no rate limit. Rows are stored in batches. The transaction of a batch also records the position in the
file: an import that stops, for whatever reason, continues where it stopped, and every row of a file is stored exactly
once. Every event has an idempotency key, so files that overlap store nothing twice.

While Postgres stores a batch, the next ones claim their keys on connections of their own and store what they can before
their turn (`chunk`), and the rows behind them are read (`reader`). If a batch fails, the batches behind it are
cancelled, and the remaining events of all of these batches are stored one batch after the other.
"""

import asyncio
import gc
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter

import msgspec

from api.clock import Clock, from_us, monotonic_ns, uuid7
from api.crypto import Keyring
from api.imports.chunk import (
    BatchResult,
    ContactChangedError,
    ImportTarget,
    PipelineSlot,
    PostponedError,
    TooManyLocksError,
    cancel,
    claim_keys,
    count_lockable,
    store_early,
    store_in_turn,
)
from api.imports.contact_cache import ContactCache
from api.imports.errors import ImportReport, Rejects
from api.imports.formats import HistoryFile
from api.imports.reader import BatchSize, Chunk, RowReader
from api.imports.rows import PastEvents, PastReader
from api.ingest.store import refusal_of
from api.store import imports as store
from api.store import query
from api.store.access import find_organization
from api.store.database import Database, LockedError, RefusedDataError, TransactionConflictError
from api.store.query import COMMIT

MAX_BATCHES_AHEAD = 2  # batches begun while one is stored (docs/decisions/0012); with 1, Postgres waits for the import
MAX_STORE_ATTEMPTS = 5
FIRST_PAUSE_S = 0.1  # before the second attempt; doubled for each further one

OLDEST_MONTH = datetime(2010, 1, 1, tzinfo=UTC)  # older events share one partition
MAX_PARTITION_ATTEMPTS = 100
PARTITION_PAUSE_S = 0.3
_DAY_US = 86_400_000_000


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
    database = Database(dsn, size=MAX_BATCHES_AHEAD + 2, statement_ms=60_000, hot=True)
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
        target = ImportTarget(org_id, ContactCache(org_id), max_locks * 3 // 4, uuid7(clock.unique_now_us()))
        context = _ImportContext(database, clock, target, PastReader(org_id, keyring.of(org_id)), rejects)
        progress = _Progress(listener, sources)
        with _rare_garbage_collection():
            for source in sources:
                progress.end_file(source, await _FileImport(context, source, progress).store())
        return progress.report
    finally:
        await database.close()


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    # Rows create no cyclic garbage, and scanning twenty thousand of them takes a tenth of the time of an import.
    before = gc.get_threshold()
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Partitions:
    """Creates the monthly partitions that an import needs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._days: set[int] = set()
        self._months: set[datetime] = set()

    async def add(self, ats_us: Iterable[int]) -> set[int]:
        """Create the missing partitions for some times; return the ids of the transactions that did."""
        days = {at_us // _DAY_US for at_us in ats_us} - self._days
        self._days |= days
        months = {from_us(day * _DAY_US).replace(day=1) for day in days}
        transaction_ids = set[int]()
        for month in sorted(months - self._months):
            self._months.add(month)
            if month >= OLDEST_MONTH:
                transaction_ids |= await self._add_month(month)
        return transaction_ids

    async def _add_month(self, month: datetime) -> set[int]:
        # A partition needs a lock on the default partition. A reader may hold it, so the wait is short and repeated: a
        # long wait for an exclusive lock would block all readers that come after it.
        for attempts_left in reversed(range(MAX_PARTITION_ATTEMPTS)):
            try:
                async with self._database.transaction() as tx:
                    return await store.new_partition_ids(tx, month) if await store.add_month(tx, month) else set()
            except LockedError:
                if not attempts_left:
                    raise
                await asyncio.sleep(PARTITION_PAUSE_S)
        raise AssertionError("the loop above returns or raises")


class _Progress:
    """Adds up the reports of all files and passes them to the listener."""

    def __init__(self, listener: Listener | None, sources: list[HistoryFile]) -> None:
        self.report = ImportReport()
        self.several_files = len(sources) > 1
        self._listener = listener
        self._total_bytes = max(sum(source.size for source in sources), 1)
        self._done_bytes = 0

    def update(self, source: HistoryFile, file_report: ImportReport, file_share: float) -> None:
        self._notify(self.report.plus(file_report), source, self._done_bytes + file_share * source.size)

    def end_file(self, source: HistoryFile, file_report: ImportReport) -> None:
        self.report = self.report.plus(file_report)
        self._done_bytes += source.size
        self._notify(self.report, source, self._done_bytes)

    def _notify(self, report: ImportReport, source: HistoryFile, done_bytes: float) -> None:
        if self._listener is not None:
            self._listener(ImportStatus(report, source.name, min(done_bytes / self._total_bytes, 1.0)))


class _ImportContext:
    def __init__(
        self, database: Database, clock: Clock, target: ImportTarget, reader: PastReader, rejects: Rejects
    ) -> None:
        self.database, self.clock, self.target, self.org_id = database, clock, target, target.org_id
        self.reader, self.rejects = reader, rejects
        self.partitions = Partitions(database)
        self.size = BatchSize()


class _BegunBatch(msgspec.Struct, eq=False):
    """A batch that is being stored: the events of `chunk` up to `end`."""

    slot: PipelineSlot
    chunk: Chunk
    end: int
    key_digests: set[bytes]


class _FileImport:
    def __init__(self, context: _ImportContext, source: HistoryFile, progress: _Progress) -> None:
        self._context, self._source, self._progress = context, source, progress
        self._report = ImportReport()
        self._begun: deque[_BegunBatch] = deque()
        self._rows = RowReader(context.reader, context.clock, context.rejects, source, named=progress.several_files)

    async def store(self) -> ImportReport:
        """Store every row that an earlier run has not stored; return the report of the file."""
        context, source = self._context, self._source
        async with context.database.transaction() as tx:
            if source.restart:
                await store.forget_import(tx, context.org_id, source.digest)
            earlier = await store.begin_import(tx, context.org_id, source.digest, source.name, context.clock.now())
        self._report = ImportReport(before=earlier.lines)
        if earlier.finished_at is None:
            with source.open(earlier.lines) as rows:
                lines = iter(rows)
                next_chunk = asyncio.create_task(self._rows.read(lines))
                try:
                    while chunk := await next_chunk:
                        chunk.share = rows.share
                        next_chunk = asyncio.create_task(self._rows.read(lines))
                        await self._store_chunk(chunk)
                    await self._end_all()
                finally:
                    await cancel(next_chunk, *(batch.slot.task for batch in self._begun))
            async with context.database.transaction() as tx:
                await store.finish_import(tx, context.org_id, source.digest, context.clock.now())
        return self._report

    async def _store_chunk(self, chunk: Chunk) -> None:
        """Store a chunk; its last batches may still be under way at the end."""
        context = self._context
        context.rejects.flush()  # before a transaction records that these lines are done
        context.target.cache.note_own(await context.partitions.add(chunk.events.occurred_at_us))
        if not chunk.events:
            await self._end_all()
            await self._advance(chunk, None)
        while chunk.begun < len(chunk.events):
            end = chunk.begun + count_lockable(context.target, chunk.events, chunk.begun, context.size.events)
            events = chunk.events.span(chunk.begun, end)
            key_digests = set(events.key_digests)
            if not all(key_digests.isdisjoint(batch.key_digests) for batch in self._begun):
                await self._end_all()  # a batch ahead may claim some of these keys
                continue
            ahead = self._begun[-1].slot if self._begun else None
            slot = PipelineSlot(ahead, partial(self._advance, chunk, events))
            self._begun.append(_BegunBatch(slot, chunk, end, key_digests))
            chunk.begun = end
            if len(self._begun) > MAX_BATCHES_AHEAD:
                await self._end_first()

    async def _end_all(self) -> None:
        while self._begun:
            await self._end_first()

    async def _end_first(self) -> None:
        """Wait for the first batch. If it failed, store it and all behind it one after the other."""
        first = self._begun.popleft()
        try:
            await first.slot.task
        except TransactionConflictError:
            self._context.target.check_keys = True  # mostly because a key was claimed before
        except (RefusedDataError, TooManyLocksError, ContactChangedError, PostponedError):
            pass
        else:
            return
        # The batches behind were begun on the assumption that this one is stored, so they are rolled back, too.
        behind = list(self._begun)
        self._begun.clear()
        await cancel(*(batch.slot.task for batch in behind))
        for batch in (first, *behind):
            while batch.chunk.done < batch.end:
                await self._store_alone(batch.chunk, batch.end)
            batch.chunk.begun = batch.chunk.done

    async def _store_alone(self, chunk: Chunk, end: int) -> None:
        """Store some of the remaining events up to `end`. If Postgres refuses a single event, it is rejected."""
        context = self._context
        count = min(count_lockable(context.target, chunk.events, chunk.done, context.size.events), end - chunk.done)
        events = chunk.events.span(chunk.done, chunk.done + count)
        try:
            await self._advance_with_retries(chunk, events)
        except TooManyLocksError:
            context.size.events = max(count // 2, 1)
        except RefusedDataError as error:
            if count > 1:
                context.size.events = count // 2
                return
            refusal = self._rows.refuse(chunk.lines[chunk.done], chunk.texts[chunk.done], refusal_of(error))
            insort(chunk.refusals, refusal, key=attrgetter("line"))
            context.rejects.flush()
            await self._advance(chunk, None, refused=1)

    async def _advance_with_retries(self, chunk: Chunk, events: PastEvents) -> None:
        for attempt in range(MAX_STORE_ATTEMPTS):
            try:
                return await self._advance(chunk, events)
            except TransactionConflictError:
                if attempt == MAX_STORE_ATTEMPTS - 1:
                    raise
                # Without `check_keys` a claimed key is the likely reason, and checking keys helps immediately.
                if self._context.target.check_keys:
                    await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)
                self._context.target.check_keys = True
        raise AssertionError("the loop above returns or raises")

    async def _advance(
        self, chunk: Chunk, events: PastEvents | None, slot: PipelineSlot | None = None, *, refused: int = 0
    ) -> None:
        """Store events, if any, and the progress of the file, in one transaction. With a slot, wait for its turn."""
        if slot is not None:
            await slot.wait_to_claim()
        context, target, at = self._context, self._context.target, self._context.clock.now()
        since_ns = turn_since_ns = monotonic_ns()
        async with context.database.transaction() as tx:
            result = BatchResult(refused, 0, 0)
            if events is not None:
                claimed = await claim_keys(tx, target, events, at)
                expected = [""] * len(claimed.events)
                if slot is not None:
                    slot.claimed.set()
                    expected = await store_early(tx, target, claimed)
                    await slot.wait_for_turn()
                turn_since_ns = monotonic_ns()
                result = await store_in_turn(tx, target, events, claimed, expected, at)
            line = chunk.line_after(result.taken)
            refusals = [refusal for refusal in chunk.refusals[chunk.reported :] if refusal.line <= line]
            progress = store.ImportProgress(line, result.stored, result.duplicates, len(refusals))
            advance = store.advance_import(context.org_id, self._source.digest, progress, at)
            # Progress is written in the transaction of the events, so that every row of a file is stored exactly once.
            await query.run(tx, *result.writes, advance, COMMIT)
        target.cache.add(result.new, at)
        if events is not None:
            now_ns = monotonic_ns()
            context.size.adapt(result.taken, now_ns - turn_since_ns, now_ns - since_ns)
        chunk.done += result.taken
        chunk.reported += len(refusals)
        batch_report = ImportReport(0, result.stored, result.duplicates, len(refusals), refusals=tuple(refusals))
        self._report = self._report.plus(batch_report)
        if chunk.done == len(chunk.events):
            self._report = self._report.plus(ImportReport(read=chunk.rows))
            self._progress.update(self._source, self._report, chunk.share)
