"""Compares parts with the events of the database, and says how far an organization's parts are."""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from api.parts import files
from api.parts.build import Slot, open_snapshot, read_pages, tables_of
from api.store import parts as store
from api.store.database import Database
from api.store.parts import EVENT_ROWS, LOG_ROWS

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MAX_COUNTED_TAIL = 1_000_000


class PartsStatus(msgspec.Struct, frozen=True):
    """The parts of an organization. `tail`: events that are not in them yet, counted up to a million.

    `touched` contacts are read from the database until their files are rewritten; `erased_at` is when the first erased
    one of them was erased. `removed` files are no longer read, and deleted soon. All events that were stored before
    `closed_at` are in parts.
    """

    files: int
    rows: int
    size: int
    removed: int
    tail: int
    touched: int
    erased_at: datetime | None
    closed_at: datetime | None
    problem: str | None


async def read_status(database: Database, org_id: int) -> PartsStatus | None:
    """Return the state of an organization's parts, None if it has none."""
    async with open_snapshot(database) as tx:
        progress = await store.find_progress(tx, org_id)
        if progress is None:
            return None
        held = await store.summarize_parts(tx, org_id)
        tail = await store.count_tail(tx, org_id, progress.closed, _MAX_COUNTED_TAIL)
        touched = await store.count_touched(tx, org_id)
    return PartsStatus(
        files=held.files,
        rows=held.rows,
        size=held.size,
        removed=held.removed,
        tail=tail,
        touched=touched.contacts,
        erased_at=touched.erased_at,
        closed_at=progress.closed_at,
        problem=progress.problem,
    )


async def verify(database: Database, data_dir: Path, org_id: int) -> list[str]:
    """Compare an organization's parts with its events; return a sentence for each difference.

    All events are read, in one snapshot; and all logs, unless the next builder adds them anew.
    """
    found: dict[Slot, list[int]] = defaultdict(lambda: [0, 0])
    expected: dict[Slot, list[int]] = defaultdict(lambda: [0, 0])
    differences: list[str] = []
    async with open_snapshot(database) as tx:
        progress = await store.find_progress(tx, org_id)
        if progress is None:
            return []
        parts = [part for part in await store.list_parts(tx, org_id) if progress.has_logs or not part.is_logs]
        numbers, months = await store.list_event_numbers(tx, org_id), await store.list_months(tx)
        touched = np.array([contact.number for contact in await store.list_touched(tx, org_id)], np.int64)
        for kind in (EVENT_ROWS, LOG_ROWS) if progress.has_logs else (EVENT_ROWS,):
            async for page, _ in read_pages(tx, org_id, 0, progress.closed, kind):
                for month, table in () if page is None else tables_of(page, numbers, months):
                    _count(expected, month, _without(table, touched), progress.buckets)
    for part in parts:
        path = files.path(data_dir, org_id, part.file)
        try:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").digest() != part.sha256:
                    differences.append(f"{path} has changed since it was written")
            for table in _rows(path):
                _count(found, part.month, _without(table, touched), progress.buckets)
        except FileNotFoundError:
            differences.append(f"{path} is missing")
    for bucket, month in sorted(expected.keys() | found.keys()):
        (count, total), (other_count, other_total) = expected[bucket, month], found[bucket, month]
        if count != other_count:
            place = f"bucket {bucket} of month {month}"
            differences.append(f"{place} has {other_count} events in parts and {count} in the database")
        elif total != other_total:
            differences.append(f"bucket {bucket} of month {month} has other events in parts than in the database")
    return differences


def _without(table: pa.Table, contacts: np.ndarray) -> pa.Table:
    return table.filter(pa.array(~np.isin(table["contact"], contacts)))


def _rows(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(files.ROW_GROUP_ROWS, columns=files.schema(()).names):
            yield pa.Table.from_batches([batch])


def _count(sums: dict[Slot, list[int]], month: str, table: pa.Table, buckets: int) -> None:
    """Add the events to the counts and checksums of their slots."""
    for bucket, rows in files.split(table, buckets):
        if rows.num_rows:
            sums[bucket, month][0] += rows.num_rows
            sums[bucket, month][1] = (sums[bucket, month][1] + _checksum(rows)) % (1 << 64)


def _checksum(table: pa.Table) -> int:
    """Return a sum over the events that is the same in any order."""
    ids = np.frombuffer(b"".join(table["id"].to_pylist()), np.uint64).reshape(-1, 2)
    payloads = np.fromiter((zlib.crc32(text.encode()) for text in table["payload"].to_pylist()), np.uint64)
    names = ("contact", "event", "occurred_at", "created_at", "stored_in")
    mixed = np.zeros(table.num_rows, np.uint64)
    for column in (*(table[name].to_numpy().astype(np.uint64) for name in names), ids[:, 0], ids[:, 1], payloads):
        mixed = (mixed ^ column) * _MIX
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum())
