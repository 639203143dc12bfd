"""The process that counts one report: `python -m api.parts.count`, with the request on its standard input.

In one snapshot it reads the list of files and the rows that are not in them (`listing`). Then it ends its transaction
and reads the files, which stay on the disk for `build.REMOVED_FILE_S`. A transaction that stayed open meanwhile would
keep Postgres from removing dead rows, and Postgres would end it for being idle.
"""

import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from api.clock import to_us
from api.parts import files
from api.parts.kernels import MAX_RECORDS, Array, Bucket, Kernel, Texts, UncountableError, kernel_of
from api.parts.listing import NoPartsError, read_listing, read_unfiled
from api.parts.rows import (
    FileRuns,
    ReportedEvents,
    SortedEvents,
    check_path,
    divide,
    merged,
    of_contacts,
    run_of_page,
    split_run,
)
from api.parts.turns import write_progress
from api.store import part_reads
from api.store import parts as store
from api.store.analyst import Snapshot
from api.store.database import Database, DatabaseUnavailableError, Transaction
from api.store.parts import PartFile, RowKind
from workbench.language.codec import encode
from workbench.language.reports import REPORTS, ReportBody, ReportProgress

MEMORY_BYTES = 750_000_000
PIECE_ROWS = 500_000  # of a bucket, in memory at a time; there are up to four pieces
READERS = 2  # threads that read pieces, while another one counts

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
_PR_SET_PDEATHSIG = 1

Groups: TypeAlias = Callable[[Bucket], Iterable[Bucket]]
"""Divides a bucket by what `by` finds of its contacts."""


class CountRequest(msgspec.Struct, frozen=True):
    """What the process is asked, as JSON."""

    dsn: str
    data_dir: str
    org_id: int
    name: str
    report: Any
    as_of: Snapshot | None
    piece_rows: int = PIECE_ROWS


class ReportCounts(msgspec.Struct, frozen=True):
    """What it answers: the JSON texts for `report_query`, and the snapshot; or why the SQL has to answer."""

    counted: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    reason: str = ""


async def count(request: CountRequest, on_progress: Callable[[int, int], None] | None = None) -> ReportCounts:
    """Count a report, or say why it cannot be counted.

    `on_progress` takes the number of buckets that are counted, and of all.
    """
    try:
        return (await read(request)).count(on_progress)
    except (
        NoPartsError,
        UncountableError,
        MemoryError,
        OSError,
        store.MissingContactError,
        DatabaseUnavailableError,
    ) as error:
        return ReportCounts(reason=f"{type(error).__name__}: {error}")


async def read(request: CountRequest) -> "ReportRows":
    """Read in one snapshot what a report needs beside files. Raises NoPartsError, UncountableError and others."""
    kind = next(report for report in REPORTS if report.name == request.name)
    report = msgspec.convert(request.report, kind)
    check_path(report.by)
    check_path(report.value)
    database = Database(request.dsn, size=1, org=str(request.org_id))
    async with database, database.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await tx.execute("SET LOCAL enable_nestloop = on")
        return await _Reader(request, report).read(tx)


class ReportRows(msgspec.Struct, frozen=True):
    """A report before its files are read.

    `files`, `unfiled`: of each bucket; a file with whether it has logs. `kernels`: each with the contacts that it
    counts, or None for all.
    """

    snapshot: Snapshot
    wanted: ReportedEvents
    texts: Texts
    files: Sequence[Sequence[tuple[Path, bool]]]
    unfiled: Sequence[Sequence[SortedEvents]]
    groups: Groups
    kernels: Sequence[tuple[Kernel, Array | None]]
    piece_rows: int

    def count(self, on_progress: Callable[[int, int], None] | None = None) -> ReportCounts:
        """Read the files and count. Raises UncountableError, OSError or MemoryError."""
        counted = 0
        if on_progress is not None:
            on_progress(counted, len(self.files))
        for bucket, is_last in self._read_pieces():
            for kernel, members in self.kernels:
                for group in self.groups(_of(bucket, members)):
                    if len(group.at):
                        kernel.add(group)
            if is_last:
                counted += 1
                if on_progress is not None:
                    on_progress(counted, len(self.files))
        records = [kernel.counted() for kernel, _ in self.kernels]
        if sum(len(rows) for of_kernel in records for rows in of_kernel.values()) > MAX_RECORDS:
            raise UncountableError(f"the answer has more than {MAX_RECORDS} records")
        return ReportCounts(tuple(encode(of_kernel).decode() for of_kernel in records), self.snapshot)

    def _read_pieces(self) -> Iterator[tuple[Bucket, bool]]:
        """Yield the pieces of each bucket, each with whether its bucket ends with it.

        Every reader thread has buckets of its own, and reads one piece ahead.
        """
        shares = [self._pieces(range(number, len(self.files), READERS)) for number in range(READERS)]
        with ThreadPoolExecutor(READERS) as readers:
            ahead = deque((share, readers.submit(next, share, None)) for share in shares)
            while ahead:
                share, reading = ahead.popleft()
                if (piece := reading.result()) is not None:
                    ahead.append((share, readers.submit(next, share, None)))
                    yield piece

    def _pieces(self, buckets: Iterable[int]) -> Iterator[tuple[Bucket, bool]]:
        for number in buckets:
            with ExitStack() as stack:
                opened = [FileRuns(path, logs, self.wanted, self.texts) for path, logs in self.files[number]]
                for file in opened:
                    stack.callback(file.close)
                first, ends = 0, divide([last for file in opened for last in file.lasts()], self.piece_rows)
                for end in ends:
                    runs = [run for file in opened for run in file.until(end)]
                    bucket = merged(
                        [*runs, *(of_contacts(run, first, end) for run in self.unfiled[number])], self.wanted
                    )
                    yield bucket, end == ends[-1]
                    first = end


class _Reader:
    """Reads one report in a transaction."""

    def __init__(self, request: CountRequest, report: ReportBody) -> None:
        self._request, self._report, self._org_id = request, report, request.org_id
        self._texts = Texts()

    async def read(self, tx: Transaction) -> ReportRows:
        listing = await read_listing(tx, Path(self._request.data_dir), self._org_id)
        # In the order of time, because then most contacts need no sort when their events are put one behind the other.
        progress, parts = listing.progress, sorted(listing.parts, key=lambda part: part.first_at)
        names, since = Texts(await store.list_event_numbers(tx, self._org_id)), to_us(self._report.since)
        members: list[Array | None] = [await self._members(tx, segment) for segment in self._report.segments]
        kernels = [(kernel_of(self._report, since, names, self._texts), numbers) for numbers in members or [None]]
        source, path = self._report.group or (None, None)
        wanted = ReportedEvents(
            kernels[0][0],
            since,
            None if self._report.until is None else to_us(self._report.until),
            path if source == "event" else None,
            self._report.value,
            self._request.as_of,
            np.array(listing.touched_numbers, np.int64),
            np.array([names.number(name) for name in self._report.logs], np.int64),
        )
        # Without the texts of payloads, Postgres takes 0.6 of the time.
        payloads = wanted.by is not None or wanted.value is not None
        if self._report.logs and not progress.has_logs:
            raise NoPartsError("the parts have no logs yet")
        kinds = [RowKind(logs, payloads) for logs in ([False, True] if self._report.logs else [False])]
        unfiled = [
            split_run(run_of_page(page, names, wanted, self._texts, touched=touched), progress.buckets)
            for kind in kinds
            async for page, touched in read_unfiled(tx, self._org_id, progress.closed, listing.touched, kind)
        ]
        groups = await self._groups(tx)
        of_buckets = [
            [
                (self._path(part.file), part.is_logs)
                for part in parts
                if part.bucket == number and _may_have(part, wanted)
            ]
            for number in range(progress.buckets)
        ]
        return ReportRows(
            listing.snapshot,
            wanted,
            self._texts,
            of_buckets,
            [[of_run[number] for of_run in unfiled] for number in range(progress.buckets)],
            groups,
            kernels,
            self._request.piece_rows,
        )

    def _path(self, file: str) -> Path:
        return files.path(Path(self._request.data_dir), self._org_id, file)

    # Groups of contacts

    async def _members(self, tx: Transaction, segment: str) -> Array:
        members = await part_reads.list_members(tx, self._org_id, segment)
        return np.array(sorted(number for number in members if number is not None), np.int64)

    async def _groups(self, tx: Transaction) -> Groups:
        """Return a function that divides a bucket by what contacts have."""
        source, path = self._report.group or (None, "")
        if source == "segment":
            names = await part_reads.list_member_segments(tx, self._org_id)
            segments = [(self._texts.number(name), await self._members(tx, name)) for name in names]
            anybody = np.unique(np.concatenate([members for _, members in segments] or [np.zeros(0, np.int64)]))

            def by_segment(bucket: Bucket) -> Iterator[Bucket]:
                for number, members in segments:
                    yield _with_group(_of(bucket, members), number)
                yield _with_group(_of(bucket, np.setdiff1d(bucket.contacts, anybody, assume_unique=True)), -1)

            return by_segment
        if source == "contact":
            rows = await part_reads.list_attribute_texts(tx, self._org_id, path, path.split("."))
            known = {number: self._texts.number(text) for number, text in rows if number is not None}
            numbers = np.array(sorted(known), np.int64)
            texts = np.array([*(known[number] for number in numbers.tolist()), -1], np.int64)

            def by_contact(bucket: Bucket) -> Iterator[Bucket]:
                groups = texts[np.searchsorted(numbers, bucket.contacts)]
                bucket = _of(bucket, numbers)
                yield msgspec.structs.replace(bucket, group=groups[bucket.rank])

            return by_contact
        return lambda bucket: [bucket]


def _of(bucket: Bucket, members: Array | None) -> Bucket:
    """Return the events of some contacts; None: of all."""
    return bucket if members is None else bucket.take(np.flatnonzero(np.isin(bucket.contacts, members)[bucket.rank]))


def _with_group(bucket: Bucket, group: int) -> Bucket:
    return msgspec.structs.replace(bucket, group=np.full(len(bucket.at), group, np.int64))


def _may_have(part: PartFile, wanted: ReportedEvents) -> bool:
    """Return whether a file may have events of the report."""
    if part.is_logs and not len(wanted.logs):
        return False
    if wanted.until is not None and part.first_at >= wanted.until:
        return False
    has_past = wanted.kernel.history or wanted.kernel.start is not None
    return has_past or part.last_at >= wanted.since


def main() -> None:
    """Answer one request on the standard input."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # the locks of `reports.turn` end with the process that holds them, and so must this one
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    pa.set_memory_pool(pa.system_memory_pool())
    # The arrays of a piece take the memory of those before. Otherwise the system maps and clears pages for each.
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, MEMORY_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    asked = sys.stdin.buffer.read()
    if not asked:  # the service has ended
        return
    request = msgspec.json.decode(asked, type=CountRequest)

    def note(counted: int, buckets: int) -> None:
        write_progress(Path(request.data_dir), request.org_id, ReportProgress(request.name, counted, buckets))

    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(count(request, note))))
    sys.stdout.flush()
    os._exit(0)  # the reader would wait 50 ms longer for the modules to be taken down


if __name__ == "__main__":
    main()
