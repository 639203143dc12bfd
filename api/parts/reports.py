"""Count a report over the parts of an organization and the rows of the heap that are not in them, in one snapshot.

A child process counts: it has a bounded memory, and it is killed when the reader of the report leaves. It takes its
snapshot, and in it the list of files, the rows of later transactions, and all rows of touched contacts:

    report = files (without touched contacts) + rows from `closed` on (without them) + all rows of touched contacts

What the kernels cannot count exactly, and an organization without parts, is left to the SQL of the report.
"""

import asyncio
import logging
import resource
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from api.clock import to_us
from api.parts import files
from api.parts.build import PAGE_ROWS, read_pages
from api.parts.kernels import Array, Bucket, CountedPeriod, Kernel, UncountableError, kernel_of
from api.parts.rows import (
    ContactRange,
    ReportedEvents,
    SortedEvents,
    Texts,
    check_path,
    divide,
    merged,
    of_contacts,
    run_of_file,
    run_of_page,
    split_run,
)
from api.query.gateway import Gateway
from api.store import part_reads
from api.store import parts as store
from api.store.analyst import QueryTimeoutError, Snapshot, TooManyQueriesError, export_snapshot
from api.store.database import Database, DatabaseUnavailableError, Transaction
from workbench.language.codec import encode
from workbench.language.reports import (
    REPORTS,
    ActiveUsers,
    Cohorts,
    Funnel,
    MessagePerformance,
    Paths,
    ReportBody,
    Retention,
    Revenue,
    TimeToConvert,
)

MAX_PROCESSES = 2
MEMORY_BYTES = 750_000_000  # of each process
PIECE_ROWS = 1_000_000  # of a bucket, in memory at a time
MAX_TAIL_ROWS = 1_000_000  # of the heap
COUNT_TIMEOUT_S = 45.0  # leaves room for the rest of the request, which has to end within a minute
_WAIT_S = 5.0
_TOUCHED_PER_PAGE = 500
_LATE, _EARLY = timedelta(days=7), timedelta(minutes=5)  # created_at after and before occurred_at, at most
_BEYOND = 2**62  # no transaction has this number

_log = logging.getLogger("workbench.parts")


class CountRequest(msgspec.Struct, frozen=True):
    """What a child process is asked, as one JSON text on its standard input."""

    dsn: str
    data_dir: str
    org_id: int
    name: str
    report: Any
    as_of: Snapshot | None
    piece_rows: int = PIECE_ROWS


class Counted(msgspec.Struct, frozen=True):
    """What it answers: the JSON texts for `report_query`, and the snapshot; or why the SQL has to answer."""

    counted: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    reason: str = ""


class ReportCounter:
    """Counts reports over parts, for one API process."""

    def __init__(self, gateway: Gateway, dsn: str, data_dir: Path | None) -> None:
        self._gateway, self._dsn, self._data_dir = gateway, dsn, data_dir
        self._processes = asyncio.Semaphore(MAX_PROCESSES)
        self.running: set[asyncio.subprocess.Process] = set()

    async def count(self, org_id: int, report: ReportBody) -> Counted | None:
        """Return what the kernels count; None if the SQL of the report has to answer.

        `data_dir` None switches parts off. Raises QueryError and InvalidQueryError.
        """
        if self._data_dir is None or isinstance(report, MessagePerformance):
            return None
        if not files.folder(self._data_dir, org_id).is_dir():
            return None
        snapshot = None
        if report.as_of is not None:
            if report.segments or (report.group or ("",))[0] in ("contact", "segment"):
                return None  # only events have a past, and the SQL says so
            snapshot = await self._gateway.snapshot_of(org_id, report.as_of)
        request = CountRequest(
            self._dsn, str(self._data_dir), org_id, report.name, msgspec.to_builtins(report), snapshot
        )
        async with self._turn(org_id), self._child() as child:
            try:
                async with asyncio.timeout(COUNT_TIMEOUT_S):
                    output, _ = await child.communicate(encode(msgspec.to_builtins(request)))
            except TimeoutError:
                raise QueryTimeoutError(f"the report took longer than {COUNT_TIMEOUT_S:g} s") from None
        try:
            counted = msgspec.json.decode(output, type=Counted)
        except msgspec.DecodeError:  # the process ended, most likely for lack of memory
            counted = Counted(reason=f"the process ended with {child.returncode}")
        if counted.reason:
            _log.info("report_by_sql", extra={"org_id": org_id, "reason": counted.reason})
            return None
        return counted

    @asynccontextmanager
    async def _turn(self, org_id: int) -> AsyncIterator[None]:
        async with self._gateway.slot(org_id):
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._processes.acquire()
            except TimeoutError:
                raise TooManyQueriesError("other reports are still running; try again") from None
            try:
                yield
            finally:
                self._processes.release()

    @asynccontextmanager
    async def _child(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a process that counts one report, and end it if it still runs at the end of the block."""
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=pipe, stdout=pipe)
        self.running.add(child)
        try:
            yield child
        finally:
            self.running.discard(child)
            if child.returncode is None:
                child.kill()
                await child.wait()


# --- In the child process


async def count(request: CountRequest) -> Counted:
    """Count a report, or say why it cannot be counted."""
    kind = next(report for report in REPORTS if report.name == request.name)
    report = msgspec.convert(request.report, kind)
    try:
        check_path(getattr(report, "by", None))
        check_path(getattr(report, "value", None))
        async with Database(request.dsn, size=1) as database, database.transaction() as tx:
            await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            await tx.execute("SET LOCAL enable_nestloop = on")
            return await _Count(request, report).run(tx)
    except (UncountableError, MemoryError, OSError, store.MissingContactError, DatabaseUnavailableError) as error:
        return Counted(reason=f"{type(error).__name__}: {error}")


class _Count:
    """One report, counted in a transaction."""

    def __init__(self, request: CountRequest, report: ReportBody) -> None:
        self._request, self._report, self._org_id = request, report, request.org_id
        self._texts = Texts()
        self._names: dict[str, int] = {}

    async def run(self, tx: Transaction) -> Counted:
        shared = await export_snapshot(tx)
        progress = await store.find_progress(tx, self._org_id)
        if shared is None or progress is None:
            raise UncountableError("no parts")
        if progress.system_identifier != shared[1].system_identifier:
            raise UncountableError("the parts are of another cluster")
        if progress.folder != files.folder_id(Path(self._request.data_dir)):
            raise UncountableError("the parts are in another folder")
        if await store.count_tail(tx, self._org_id, progress.closed, MAX_TAIL_ROWS + 1) > MAX_TAIL_ROWS:
            raise UncountableError("the parts are too far behind")
        parts = await store.list_parts(tx, self._org_id)
        for part in parts:
            if self._path(part.file).stat().st_size != part.size:
                raise UncountableError(f"the file {part.file} has another size")
        self._names = dict(await store.list_event_numbers(tx, self._org_id))
        touched = await store.list_touched(tx, self._org_id)
        wanted = self._wanted([contact.number for contact in touched if contact.number is not None])
        heap = [run async for run in self._heap(tx, progress.closed, touched, wanted)]
        groups = await self._groups(tx)
        kernels: list[tuple[Kernel, Array | None]] = [
            (self._kernel(), await self._members(tx, segment)) for segment in self._report.segments
        ]
        kernels = kernels or [(self._kernel(), None)]
        of_buckets = [
            [self._path(part.file) for part in parts if part.bucket == number and _may_have(part.month, wanted)]
            for number in range(progress.buckets)
        ]
        by_bucket = [split_run(run, progress.buckets) for run in heap]
        for bucket in self._buckets(of_buckets, wanted, by_bucket):
            for kernel, members in kernels:
                for part in groups(_of(bucket, members)):
                    kernel.add(part)
        counted = tuple(encode(kernel.counted()).decode() for kernel, _ in kernels)
        return Counted(counted, shared[1])

    def _path(self, file: str) -> Path:
        return files.path(Path(self._request.data_dir), self._org_id, file)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name.lower(), max(self._names.values(), default=0) + 1)

    def _wanted(self, without: list[int]) -> ReportedEvents:
        report, events, start, history, ordered = self._report, None, None, False, False
        by_event = value_event = -1
        match report:
            case Funnel():
                events, ordered, by_event = report.steps, True, self._number(report.steps[0])
            case Retention():
                events, start = None if report.back is None else (report.start, report.back), self._number(report.start)
            case Cohorts():
                events, start, value_event = (
                    (report.start, report.event),
                    self._number(report.start),
                    self._number(report.event),
                )
            case ActiveUsers():
                events, history = None if report.event is None else (report.event,), True
            case Paths():
                ordered = True
            case Revenue():
                events, by_event = (report.event,), self._number(report.event)
                value_event = by_event
            case TimeToConvert():
                events = (report.start, report.goal)
            case _:
                raise UncountableError(report.name)
        source, path = report.group or (None, None)
        return ReportedEvents(
            None if events is None else np.array(sorted({self._number(name) for name in events})),
            to_us(report.since),
            None if report.until is None else to_us(report.until),
            start,
            history,
            path if source == "event" else None,
            by_event,
            getattr(report, "value", None),
            value_event,
            self._request.as_of,
            np.array(sorted(without), np.int64),
            ordered,
        )

    def _kernel(self) -> Kernel:
        names = [""] * (max(self._names.values(), default=0) + 1)
        for name, number in self._names.items():
            names[number] = name
        until = None if self._report.until is None else to_us(self._report.until)
        return kernel_of(self._report, CountedPeriod(to_us(self._report.since), until), names, self._texts.texts)

    # The heap

    async def _heap(
        self, tx: Transaction, closed: int, touched: Sequence[store.TouchedContact], wanted: ReportedEvents
    ) -> AsyncIterator[SortedEvents]:
        """Yield the rows that are not in files."""
        async for page, _ in read_pages(tx, self._org_id, closed, _BEYOND):
            if page is not None:
                yield run_of_page(page, self._names, wanted, self._texts, touched=False)
        for start in range(0, len(touched), _TOUCHED_PER_PAGE):
            ids = [contact.contact_id for contact in touched[start : start + _TOUCHED_PER_PAGE]]
            after = store.FIRST_ID
            while page := await store.read_contacts(tx, self._org_id, ids, _BEYOND, PAGE_ROWS, after):
                yield run_of_page(page, self._names, wanted, self._texts, touched=True)
                after = page.last_id

    # Files

    def _buckets(
        self, of_buckets: Sequence[Sequence[Path]], wanted: ReportedEvents, heap: Sequence[Sequence[SortedEvents]]
    ) -> Iterator[Bucket]:
        """Yield each bucket in pieces, and read the next piece meanwhile."""
        pieces = [
            (number, piece)
            for number, paths in enumerate(of_buckets)
            for piece in divide(paths, self._request.piece_rows)
        ]

        def read(number: int, piece: ContactRange) -> Bucket:
            runs = [run_of_file(path, wanted, self._texts, piece) for path in of_buckets[number]]
            return merged([*runs, *(of_contacts(of_run[number], piece) for of_run in heap)], wanted)

        with ThreadPoolExecutor(1) as reader:
            ahead: Future[Bucket] | None = reader.submit(read, *pieces[0])
            for following in [*pieces[1:], None]:
                assert ahead is not None
                bucket = ahead.result()
                ahead = None if following is None else reader.submit(read, *following)
                yield bucket

    # Groups of contacts

    async def _members(self, tx: Transaction, segment: str) -> Array:
        members = await part_reads.list_members(tx, self._org_id, segment)
        return np.array(sorted(number for number in members if number is not None), np.int64)

    async def _groups(self, tx: Transaction) -> Any:
        """Return a function that divides a bucket by what contacts have."""
        source, path = self._report.group or (None, "")
        if source == "segment":
            names = await part_reads.list_member_segments(tx, self._org_id)
            segments = [(self._texts.number(name), await self._members(tx, name)) for name in names]
            anybody = np.unique(np.concatenate([members for _, members in segments] or [np.zeros(0, np.int64)]))

            def by_segment(bucket: Bucket) -> Iterator[Bucket]:
                for number, members in segments:
                    yield _with_part(_of(bucket, members), number)
                yield _with_part(bucket.take(np.flatnonzero(~np.isin(bucket.contact, anybody))), -1)

            return by_segment
        if source == "contact":
            rows = await part_reads.list_attribute_texts(tx, self._org_id, path, path.split("."))
            known = {number: self._texts.number(text) for number, text in rows if number is not None}
            numbers = np.array(sorted(known), np.int64)
            texts = np.array([known[number] for number in numbers.tolist()], np.int64)

            def by_contact(bucket: Bucket) -> Iterator[Bucket]:
                bucket = _of(bucket, numbers)
                yield msgspec.structs.replace(bucket, part=texts[np.searchsorted(numbers, bucket.contact)])

            return by_contact
        return lambda bucket: [bucket]


def _of(bucket: Bucket, members: Array | None) -> Bucket:
    """Return the events of some contacts; None: of all."""
    return bucket if members is None else bucket.take(np.flatnonzero(np.isin(bucket.contact, members)))


def _with_part(bucket: Bucket, part: int) -> Bucket:
    return msgspec.structs.replace(bucket, part=np.full(len(bucket.at), part, np.int64))


def _may_have(month: str, wanted: ReportedEvents) -> bool:
    """Return whether a partition, which is of a month in which events were received, may have events of the report."""
    if month == "other":
        return True
    begin = datetime.fromisoformat(f"{month.replace('_', '-')}-01T00:00:00+00:00")
    end = (begin + timedelta(days=32)).replace(day=1)
    if wanted.until is not None and to_us(begin) >= wanted.until + _LATE // timedelta(microseconds=1):
        return False
    has_past = wanted.history or wanted.start is not None
    return has_past or to_us(end) > wanted.since - _EARLY // timedelta(microseconds=1)


def main() -> None:
    """Answer one request on the standard input."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(2)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CountRequest)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(count(request))))


if __name__ == "__main__":
    main()
