"""Builds the parts of an organization, and adds its new events to them.

**Exactness.** A step reads events in a REPEATABLE READ snapshot: those of transactions with numbers from `closed` up
to the oldest transaction that was open. All transactions below that number have ended, so the step waits for none,
and no event can be added below it later. The new files and the new `closed` are committed in one transaction, so a
reader's snapshot has both or neither. A transaction that moves or erases events of a contact marks the contact in
`touched_contacts`. Readers take such contacts from `events`, until a rewrite has read them again and removes the
marks that it saw.

**Crashes.** A file is written under a temporary name, flushed, renamed and then listed. What is not listed is never
read, and the next run deletes it. The names of files are never used again. A file that is no longer listed stays for
`REMOVED_FILE_S`, because readers with an older snapshot may open it.

**Memory.** A step reads pages of events until they reach `STEP_ROWS` or `STEP_BYTES`, or its logs `STEP_ROWS`. Merging
holds a few thousand rows of each file. One transaction at a time builds for an organization; the lock ends with its
connection.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from api.clock import to_us, uuid7
from api.parts import files
from api.private_files import make_folder
from api.store import parts as store
from api.store.database import Database, Transaction, is_distributed
from api.store.locks import BUILDING, try_turn
from api.store.parts import EVENT_ROWS, LOG_ROWS, EventPage, PartFile, Progress, RowKind

FIRST_PAGE_ROWS, PAGE_ROWS, PAGE_BYTES = 2_000, 50_000, 20_000_000
# Smaller steps make files that are merged soon, which costs a fifth of a build.
STEP_ROWS, STEP_BYTES = 1_000_000, 150_000_000
BUCKET_ROWS = 8_000_000  # a bucket with more is divided
MAX_SMALL_FILES = 8  # of a bucket and month, beside the largest
MERGED_FILES = 16  # at a time
TOUCHED_PER_PAGE = 500
REMOVED_FILE_S = 600
NEW_FILE_S = 600  # a new file may be visible on other machines later than in the list, when it has been uploaded
FOLDER_LEASE = timedelta(hours=1)  # without an engine that looks after a folder, another machine builds its parts
REWRITE_INTERVAL = timedelta(minutes=10)  # rewriting a bucket takes seconds, so touched contacts are collected
MANY_TOUCHED = 5_000  # contacts, whose events a reader may take 0.3 s to read from the database
ON_CITUS = "parts are not available on Citus: its nodes have no common order of transactions"
_SAMPLE_ROWS = 2_000
_NUMBERED_CONTACTS = 5_000
_LOCKED_ROWS_PAUSE_S = 0.1

_log = logging.getLogger("workbench.parts")

Slot = tuple[int, str]
"""A bucket and a month."""


class BusyError(Exception):
    """Another process builds the parts of this organization, or its files are not visible here yet."""


class UnsupportedError(Exception):
    """The database cannot have parts; the message says why."""


class OtherFolderError(Exception):
    """The files are in another data folder, which an engine looks after."""


class BuildResult(msgspec.Struct, frozen=True):
    """What a run did: events added, files merged or rewritten, and files deleted."""

    added: int
    rewritten: int
    deleted: int


async def build(database: Database, data_dir: Path, org_id: int, now: Callable[[], datetime]) -> BuildResult:
    """Bring an organization's parts up to date.

    Raises BusyError, OtherFolderError, UnsupportedError, MissingContactError, or OSError if the disk is full. What was
    listed before stays valid.
    """
    async with _turn(database, org_id) as cluster:
        builder = _Builder(database, data_dir, org_id, now)
        await builder.begin(cluster)
        # First, because it makes room and erased payloads are in these files; adding events may fail.
        deleted = await builder.delete_files()
        try:
            rewritten = await builder.rewrite_touched()
            added = await builder.add_events()
            rewritten += await builder.divide_buckets() + await builder.merge_small()
        finally:
            deleted += await builder.delete_files()
        return BuildResult(added, rewritten, deleted)


async def drop(database: Database, data_dir: Path, org_id: int, at: datetime) -> int:
    """Remove all parts of an organization and delete their files; return the number of files. Raises BusyError."""
    async with _turn(database, org_id):
        return await _drop(database, data_dir, org_id, at)


async def tidy(database: Database, data_dir: Path, org_id: int) -> None:
    """Delete what an organization without parts in this folder does not need: files, and marks if it has no parts.

    Raises BusyError, or UnsupportedError.
    """
    folder = await files.look(files.find_folder_id, data_dir)
    async with _turn(database, org_id), database.transaction() as tx:
        progress = next((row for row in await store.list_progress(tx) if row.org_id == org_id), None)
        if progress is None:
            await store.clear_all_touched(tx, org_id)
        if progress is None or progress.folder != folder:
            await files.look(_delete_all_files, data_dir, org_id)


@asynccontextmanager
async def _turn(database: Database, org_id: int) -> AsyncIterator[int]:
    """Keep other builders of the organization out; yield the id of the cluster."""
    async with database.transaction() as tx:
        if await is_distributed(tx):
            raise UnsupportedError(ON_CITUS)
        await tx.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        if not await try_turn(tx, BUILDING, org_id):
            raise BusyError("another process is building the parts of this organization")
        _, cluster = await store.find_oldest_open(tx)
        yield cluster


@asynccontextmanager
async def open_snapshot(database: Database) -> AsyncIterator[Transaction]:
    """Open a transaction with one snapshot for all its statements."""
    async with database.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await tx.execute("SET LOCAL idle_in_transaction_session_timeout = '10min'")
        yield tx


async def _drop(database: Database, data_dir: Path, org_id: int, at: datetime) -> int:
    async with database.transaction() as tx:
        await store.delete_progress(tx, org_id)
        removed = await store.remove_all_parts(tx, org_id, at)
        await store.delete_removed(tx, org_id, [*await store.list_files(tx, org_id)])
    await files.look(_delete_all_files, data_dir, org_id)
    return removed


def _delete_all_files(data_dir: Path, org_id: int) -> None:
    for file in files.list_files(data_dir, org_id):
        file.unlink(missing_ok=True)


class _Builder:
    """The work of one run. The caller has the organization's turn."""

    def __init__(self, database: Database, data_dir: Path, org_id: int, now: Callable[[], datetime]) -> None:
        self._database, self._data_dir, self._org_id, self._now = database, data_dir, org_id, now

    async def begin(self, cluster: int) -> None:
        """Make the folder, check what is there, and begin anew if it is not from this cluster or incomplete."""
        make_folder(files.folder(self._data_dir, self._org_id))
        folder = files.make_folder_id(self._data_dir)
        async with self._database.transaction() as tx:
            progress = await store.find_progress(tx, self._org_id)
            parts = await store.list_parts(tx, self._org_id)
            new = await store.list_new(tx, self._org_id, self._now() - timedelta(seconds=NEW_FILE_S))
        if progress is not None:
            missing = {part.file for part in parts if not self._is_whole(part)}
            if progress.system_identifier != cluster:
                reason = "the database moved to another cluster"
            elif progress.folder != folder and progress.kept_at < self._now() - FOLDER_LEASE:
                reason = "no engine looks after the folder with the files"
            elif progress.folder != folder:
                _delete_all_files(self._data_dir, self._org_id)  # of an earlier time
                raise OtherFolderError(
                    f"the parts of organization {self._org_id} are in the data folder of another machine. If no engine "
                    "runs there for an hour, another machine builds them; at once with: workbench parts drop"
                )
            elif not missing:
                return
            elif missing <= new:
                raise BusyError(f"{len(missing)} new files are not on this machine yet")
            else:
                reason = "files are missing"
            _log.warning("parts_dropped", extra={"org_id": self._org_id, "reason": reason})
        await _drop(self._database, self._data_dir, self._org_id, self._now())
        await self._number_contacts()
        async with self._database.transaction() as tx:
            buckets = buckets_for(await store.count_events(tx, self._org_id))
            await store.clear_all_touched(tx, self._org_id)
            await store.begin_parts(tx, self._org_id, buckets, folder, cluster)

    def _is_whole(self, part: PartFile) -> bool:
        try:
            return self._path(part.file).stat().st_size == part.size
        except FileNotFoundError:
            return False

    async def _number_contacts(self) -> None:
        """Give contacts from before the column `number` their numbers; later ones have one from the beginning."""
        unnumbered = True
        while unnumbered:
            async with self._database.transaction() as tx:
                numbered = await store.number_contacts(tx, self._org_id, _NUMBERED_CONTACTS)
            async with self._database.transaction() as tx:
                unnumbered = await store.has_unnumbered_contacts(tx, self._org_id)
            if unnumbered and not numbered:  # other transactions have locked their rows
                await asyncio.sleep(_LOCKED_ROWS_PAUSE_S)

    # Adding events

    async def add_events(self) -> int:
        """Add all events of transactions that have ended, and of which none before is open; return their number."""
        added = await self._add_former_logs()
        while True:
            rows, is_last = await self._step()
            added += rows
            if is_last:
                return added

    async def _step(self) -> tuple[int, bool]:
        """Add events up to a limit; return their number, and whether there are no more."""
        written: list[PartFile] = []
        began_at = self._now()
        async with open_snapshot(self._database) as tx:
            progress = await store.find_progress(tx, self._org_id)
            assert progress is not None, "only the holder of the turn deletes it"
            oldest, _ = await store.find_oldest_open(tx)
            until = await self._end_of_logs(tx, progress.closed, oldest)
            numbers = await store.list_event_numbers(tx, self._org_id)
            months = await store.list_months(tx)
            known, keys, closed, rows = len(numbers), progress.keys, progress.closed, 0
            collected = _Collected(progress.buckets)
            async for page, end in read_pages(tx, self._org_id, progress.closed, until):
                if page is not None:
                    rows += len(page)
                    if len(keys) < files.MAX_KEYS:
                        keys = files.common_keys(page.payloads.slice(0, _SAMPLE_ROWS), keys)
                    collected.add(page, numbers, months)
                is_full = collected.is_full
                if is_full:
                    written += self._write(collected.drain(keys), keys)
                if end is not None:
                    closed = end
                    if is_full:
                        break
            async for page, _ in read_pages(tx, self._org_id, progress.closed, closed, LOG_ROWS):
                if page is not None:
                    rows += len(page)
                    collected.add(page, numbers, months)
                if collected.is_full:
                    written += self._write(collected.drain(keys), keys)
            written += self._write(collected.drain(keys), keys)
            # Until this commit, the snapshot keeps months from being dropped: it has locked them.
            async with self._database.transaction() as write:
                at = began_at if closed == oldest else None
                if not await store.advance_progress(write, self._org_id, progress.closed, closed, keys, at):
                    raise BusyError("another process has built these parts")
                await store.add_event_numbers(write, self._org_id, [*numbers.values()][known:], [*numbers][known:])
                await store.add_parts(write, self._org_id, written, self._now())
        return rows, closed == oldest

    async def _add_former_logs(self) -> int:
        """Add the logs of earlier transactions, if the last builder was of a version without logs; return their number.

        Such a builder adds none, and loses those of contacts that it reads again.
        """
        async with self._database.transaction() as tx:
            progress, parts = await self._listed(tx)
            if progress.has_logs:
                return 0
            await self._replace(tx, [part for part in parts if part.is_logs], [])
        added = since = 0
        while since < progress.closed:
            collected, written = _Collected(progress.buckets), []
            async with open_snapshot(self._database) as tx:
                numbers, months = await store.list_event_numbers(tx, self._org_id), await store.list_months(tx)
                known, end = len(numbers), await self._end_of_logs(tx, since, progress.closed)
                async for page, _ in read_pages(tx, self._org_id, since, end, LOG_ROWS):
                    if page is not None:
                        added += len(page)
                        collected.add(page, numbers, months)
                    if collected.is_full:
                        written += self._write(collected.drain(progress.keys), progress.keys)
                written += self._write(collected.drain(progress.keys), progress.keys)
            async with self._database.transaction() as tx:
                await store.add_event_numbers(tx, self._org_id, [*numbers.values()][known:], [*numbers][known:])
                await store.add_parts(tx, self._org_id, written, self._now())
            since = end
        async with self._database.transaction() as tx:
            await store.note_logs(tx, self._org_id, progress.closed)
        return added

    async def _end_of_logs(self, tx: Transaction, since: int, until: int) -> int:
        """Return the number of the transaction before which a step ends, so that it reads about `STEP_ROWS` logs."""
        end = await store.find_page_end(tx, self._org_id, since, until, STEP_ROWS, logs=True)
        return until if end is None else max(end, since + 1)

    # Rewriting

    async def rewrite_touched(self) -> int:
        """Read the events of touched contacts again, and rewrite the files that have older events of them."""
        async with open_snapshot(self._database) as tx:
            touched = await store.list_touched(tx, self._org_id)
            progress, parts = await self._listed(tx)
            before = self._now() - REWRITE_INTERVAL
            if self._org_id not in await store.find_rewrites_due(tx, progress.folder, before, MANY_TOUCHED):
                return 0
            numbers = np.array(sorted(contact.number for contact in touched if contact.number is not None), np.int64)
            names, months = await store.list_event_numbers(tx, self._org_id), await store.list_months(tx)
            known, written, collected = len(names), [], _Collected(progress.buckets)
            for start in range(0, len(touched), TOUCHED_PER_PAGE):
                ids = [contact.contact_id for contact in touched[start : start + TOUCHED_PER_PAGE]]
                for kind in (EVENT_ROWS, LOG_ROWS):
                    async for page in _read_contacts(tx, self._org_id, ids, progress.closed, kind):
                        collected.add(page, names, months)
                        if collected.is_full:
                            written += self._write(collected.drain(progress.keys), progress.keys)
            written += self._write(collected.drain(progress.keys), progress.keys)
        outdated = [part for part in parts if files.has_contacts(self._path(part.file), numbers)]
        for part in outdated:
            rest = files.merge([self._path(part.file)], progress.keys, without=numbers)
            written += self._write((((part.bucket, part.month), table) for table in rest), progress.keys)
        async with self._database.transaction() as tx:
            await self._replace(tx, outdated, written)
            # Of logs that were removed when the others of their transactions were added.
            await store.add_event_numbers(tx, self._org_id, [*names.values()][known:], [*names][known:])
            await store.clear_touched(tx, self._org_id, touched)
            await store.note_rewritten(tx, self._org_id, progress.buckets, self._now())
        return len(outdated)

    async def divide_buckets(self) -> int:
        """Divide buckets that have become too large; return the number of files rewritten."""
        async with self._database.transaction() as tx:
            progress, parts = await self._listed(tx)
        buckets = buckets_for(sum(part.rows for part in parts))
        if buckets <= progress.buckets:
            return 0
        written: list[PartFile] = []
        for part in parts:
            divided = (
                ((bucket, part.month), rows)
                for table in files.merge([self._path(part.file)], progress.keys)
                for bucket, rows in files.split(table, buckets)
            )
            written += self._write(divided, progress.keys)
        async with self._database.transaction() as tx:
            await self._replace(tx, parts, written)
            await store.note_rewritten(tx, self._org_id, buckets, self._now())
        return len(parts)

    async def merge_small(self) -> int:
        """Merge files of the same bucket and month; return the number of files that were merged."""
        merged = 0
        async with self._database.transaction() as tx:
            progress, parts = await self._listed(tx)
        for slot in {(part.bucket, part.month) for part in parts}:
            members = [part for part in parts if (part.bucket, part.month) == slot]
            while small := files_to_merge(members):
                tables = files.merge([self._path(part.file) for part in small], progress.keys)
                written = self._write(((slot, table) for table in tables), progress.keys)
                async with self._database.transaction() as tx:
                    await self._replace(tx, small, written)
                merged += len(small)
                members = [part for part in members if part not in small] + written
        return merged

    async def delete_files(self) -> int:
        """Delete files that are no longer listed, once no reader can use them, and those that never were."""
        now = self._now()
        async with self._database.transaction() as tx:
            await store.remove_dropped_months(tx, self._org_id, now)
            removed = await store.list_files(tx, self._org_id)
        kept = {
            self._path(file)
            for file, removed_at in removed.items()
            if removed_at is None or now - removed_at < timedelta(seconds=REMOVED_FILE_S)
        }
        deleted = [file for file in files.list_files(self._data_dir, self._org_id) if file not in kept]
        for file in deleted:
            file.unlink(missing_ok=True)
        async with self._database.transaction() as tx:
            await store.delete_removed(tx, self._org_id, [file for file in removed if self._path(file) not in kept])
        return len(deleted)

    async def _listed(self, tx: Transaction) -> tuple[Progress, list[PartFile]]:
        progress = await store.find_progress(tx, self._org_id)
        assert progress is not None, "only the holder of the turn deletes it"
        return progress, await store.list_parts(tx, self._org_id)

    async def _replace(self, tx: Transaction, old: Sequence[PartFile], new: list[PartFile]) -> None:
        if await store.remove_parts(tx, self._org_id, [part.file for part in old], self._now()) != len(old):
            raise BusyError("another process has replaced these parts")
        await store.add_parts(tx, self._org_id, new, self._now())

    def _write(self, tables: Iterable[tuple[Slot, pa.Table]], keys: Sequence[str]) -> list[PartFile]:
        """Write sorted tables, in their order, to one file for each slot."""
        writers: dict[Slot, files.FileWriter] = {}
        try:
            for slot, table in tables:
                if slot not in writers:
                    file = uuid7(to_us(self._now()))
                    writers[slot] = files.FileWriter(self._path(file), keys, file, *slot)
                writers[slot].write(table)
            written = [writer.finish() for writer in writers.values()]
        except BaseException:
            for writer in writers.values():
                writer.abandon()
            raise
        files.flush_folder(files.folder(self._data_dir, self._org_id))
        return written

    def _path(self, file: str) -> Path:
        return files.path(self._data_dir, self._org_id, file)


async def read_pages(
    tx: Transaction, org_id: int, since: int, until: int, kind: RowKind = EVENT_ROWS
) -> AsyncIterator[tuple[EventPage | None, int | None]]:
    """Yield events, or logs, with the number below which all have been read; None within a transaction."""
    limit = FIRST_PAGE_ROWS
    while since < until:
        end = await store.find_page_end(tx, org_id, since, until, limit, kind.logs)
        end = until if end is None else max(end, since + 1)
        if end > since + 1 or await store.find_page_end(tx, org_id, since, end, 2 * limit, kind.logs) is None:
            page = await store.read_page(tx, org_id, since, end, kind)
            yield page, end
            limit = _following_rows(page, limit)
        else:  # one transaction with very many events, such as those from before transactions were numbered
            after = store.FIRST_ID
            while page := await store.read_part_of_transaction(tx, org_id, since, limit, kind, after):
                yield page, None
                after, limit = page.last_id, _following_rows(page, limit)
            yield None, end
        since = end


async def _read_contacts(
    tx: Transaction, org_id: int, contact_ids: Sequence[str], until: int, kind: RowKind
) -> AsyncIterator[EventPage]:
    limit, after = FIRST_PAGE_ROWS, store.FIRST_ID
    while page := await store.read_contacts(tx, org_id, contact_ids, until, limit, kind, after):
        yield page
        after, limit = page.last_id, _following_rows(page, limit)


def _following_rows(page: EventPage | None, rows: int) -> int:
    """Return how many events to read next, so that payloads of 16 KB do not fill the memory."""
    if page is None:
        return rows
    payload_bytes: int = page.payloads.nbytes
    return max(min(PAGE_BYTES * len(page) // payload_bytes, PAGE_ROWS), 1)


class _Collected:
    """Events of pages, by bucket and month."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._tables: dict[Slot, list[pa.Table]] = defaultdict(list)
        self.rows = self.bytes = 0

    def add(self, page: EventPage, numbers: dict[str, int], months: Collection[str]) -> None:
        """Add a page; as in `tables_of`, new names get numbers."""
        for month, of_month in tables_of(page, numbers, months):
            self.rows += of_month.num_rows
            self.bytes += of_month.nbytes
            for bucket, rows in files.split(of_month, self._buckets):
                self._tables[bucket, month].append(rows)

    @property
    def is_full(self) -> bool:
        return self.rows >= STEP_ROWS or self.bytes >= STEP_BYTES

    def drain(self, keys: Sequence[str]) -> Iterator[tuple[Slot, pa.Table]]:
        """Remove all events; yield those of each slot, sorted and with their columns of payloads."""
        tables, self._tables = self._tables, defaultdict(list)
        self.rows = self.bytes = 0
        for slot in sorted(tables):
            yield slot, files.with_typed_columns(files.sort(pa.concat_tables(tables.pop(slot))), keys)


def tables_of(page: EventPage, numbers: dict[str, int], months: Collection[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the events of a page by partition, in the columns of a file.

    Names without a number get the next one in `numbers`. Events are in the partition of their month if there is one,
    else in `other`; logs are in `LOGS`.
    """
    table = _page_table(page, numbers)
    if page.logs:
        yield store.LOGS, table
        return
    created_in = page.created_at.astype("datetime64[us]").astype("datetime64[M]")
    for month in np.unique(created_in):
        name = str(month).replace("-", "_")
        is_in = created_in == month
        yield name if name in months else "other", table if is_in.all() else table.filter(pa.array(is_in))


def _page_table(page: EventPage, numbers: dict[str, int]) -> pa.Table:
    names = page.events.dictionary_encode()
    for name in names.dictionary.to_pylist():
        numbers.setdefault(name, len(numbers))
    number_of = np.array([numbers[name] for name in names.dictionary.to_pylist()], np.int32)
    columns = (page.contacts, number_of[names.indices.to_numpy()], page.occurred_at, page.created_at, page.stored_in)
    return pa.table([*map(pa.array, columns), page.ids, page.payloads], files.schema(()))


def buckets_for(events: int) -> int:
    """Return the number of buckets for so many events, a power of two."""
    return 1 << max((events - 1) // BUCKET_ROWS, 0).bit_length()


def files_to_merge(members: Sequence[PartFile]) -> list[PartFile]:
    """Return the files of a bucket and month to merge now, none if they are few and most events are in one of them.

    The smallest ones are merged among themselves while all small ones are few compared with the largest. So each event
    is written again a few times only: merging at a tenth of the largest, and not at half of it, would write it 11 times
    instead of 3.
    """
    by_size = sorted(members, key=lambda part: part.rows)
    small, largest = by_size[:-1], by_size[-1]
    if len(small) >= MERGED_FILES:
        return small[:MERGED_FILES]
    if 2 * sum(part.rows for part in small) > largest.rows:
        return by_size
    return small[:MAX_SMALL_FILES] if len(small) > MAX_SMALL_FILES else []
