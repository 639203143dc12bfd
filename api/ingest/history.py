"""The import of history: files of past events, read by the same rules as live ones except for their age.

An imported event is created when it occurred, so it lands in the month it belongs to. It triggers nothing and has no rate
limit. Rows are stored in pieces, each one transaction with the locks of live ingest, in their order, and each notes in the same
transaction how far the file is: an import that broke off, however it did, goes on where it stopped, and every row of a file is
there exactly once. Because every event has an idempotency key, files that overlap store nothing twice.

While Postgres stores a piece, the next ones claim their keys on connections of their own and bring the events of people who were met
before or seem to be new, which is all they can do before their turn; and the rows behind are read, in steps of a millisecond or two so
that Postgres never waits for long. Should a piece not be stored as it was given, the next ones are taken back, and what is left of
all is stored one after the other, all of it in turn.
"""

import asyncio
import gc
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from operator import attrgetter

import msgspec

from api.clock import Clock, monotonic_ns, uuid7
from api.ingest.files.row import Rows
from api.ingest.files.sources import Source
from api.ingest.line import Place, PutOffError, stop
from api.ingest.months import Months
from api.ingest.past import (
    Claimed,
    MovedError,
    Past,
    Piece,
    TooManyLocksError,
    claim,
    lockable,
    store_expected,
    store_rest,
)
from api.ingest.past_arrival import PastEvents, PastReader
from api.ingest.reading import Chunk, Reading
from api.ingest.rejects import Rejects
from api.ingest.report import ImportReport, Refusal
from api.ingest.returning import Memory
from api.ingest.sizing import Size
from api.ingest.writing import refusal_of
from api.keyring import Keyring
from api.store import calls, imports
from api.store.access import find_organization
from api.store.calls import COMMIT
from api.store.database import ConflictError, Database, RefusedDataError, Transaction
from api.store.history import most_locks

AHEAD = 2  # pieces that are begun while one is being stored
TRIES = 5
PAUSE_SECONDS = 0.1  # before another try, and twice as long before each further one


class UnknownOrganizationError(Exception):
    """There is no organization of that name."""


class Status(msgspec.Struct, frozen=True):
    """How far an import is: what became of the rows so far, which file is being read, and how much of all has been, 0 to 1."""

    report: ImportReport
    file: str
    share: float


Listener = Callable[[Status], None]


def silent(_status: Status) -> None:
    """Hear nothing."""


async def import_history(
    dsn: str,
    keyring: Keyring,
    org_name: str,
    sources: list[Source],
    rejects: Rejects,
    listener: Listener = silent,
) -> ImportReport:
    """Import files for an organization, one after the other; `listener` hears how far it is after every transaction.

    Raises UnknownOrganizationError, UnreadableFileError, and UnavailableError when Postgres went away: begin again then.
    """
    database = Database(dsn, size=AHEAD + 2, statement_ms=60_000, hot=True)
    await database.open()
    try:
        clock = Clock()
        await database.calibrate(clock)
        async with database.transaction() as tx:
            org_id = await find_organization(tx, org_name)
            locks = await most_locks(tx)
        if org_id is None:
            raise UnknownOrganizationError(f"there is no organization named {org_name}")
        past = Past(org_id, Memory(org_id), locks * 3 // 4, uuid7(clock.unique_now_us()))
        run = _Run(database, clock, past, PastReader(org_id, keyring.of(org_id)), rejects)
        told = _Told(listener, sources)
        with _seldom_collected():
            for source in sources:
                told.end_file(source, await _File(run, source, told).store())
        return told.report
    finally:
        await database.close()


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for circular garbage less often: rows make none, and to look through twenty thousand of them costs a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Told:
    """Tells the listener how far all files are together."""

    def __init__(self, listener: Listener, sources: list[Source]) -> None:
        self.report = ImportReport()
        self.several = len(sources) > 1
        self._listener = listener
        self._size = max(sum(each.size for each in sources), 1)
        self._done = 0

    def tell(self, source: Source, of_file: ImportReport, share: float) -> None:
        """Say how far a file is."""
        of_all = min((self._done + share * source.size) / self._size, 1.0)
        self._listener(Status(self.report.plus(of_file), source.name, of_all))

    def end_file(self, source: Source, of_file: ImportReport) -> None:
        """Say that a file is done."""
        self.report = self.report.plus(of_file)
        self._done += source.size
        self._listener(Status(self.report, source.name, min(self._done / self._size, 1.0)))


class _Run:
    """What the files of one import share."""

    def __init__(self, database: Database, clock: Clock, past: Past, reader: PastReader, rejects: Rejects) -> None:
        self.database, self.clock, self.past, self.org_id = database, clock, past, past.org_id
        self.reader, self.rejects = reader, rejects
        self.months = Months(database)
        self.size = Size()


class _Begun(msgspec.Struct, eq=False):
    """A piece that is being stored: whose events, up to which of them, and their keys."""

    place: Place
    chunk: Chunk
    end: int
    key_digests: set[bytes]


class _File:
    """The import of one file. While a piece is being stored, the next ones do what they can before their turn."""

    def __init__(self, run: _Run, source: Source, told: _Told) -> None:
        self._run, self._source, self._told = run, source, told
        self._report = ImportReport()
        self._begun: deque[_Begun] = deque()
        self._reading = Reading(run.reader, run.clock, run.rejects, source, named=told.several)

    async def store(self) -> ImportReport:
        """Store every row that was not done before; return what became of them."""
        run, source = self._run, self._source
        async with run.database.transaction() as tx:
            if source.again:
                await imports.forget_import(tx, run.org_id, source.digest)
            known = await imports.begin_import(tx, run.org_id, source.digest, source.name, run.clock.now())
        self._report = ImportReport(before=known.lines)
        if known.finished_at is None:
            with source.opened(known.lines) as rows:
                await self._store_rows(rows)
            async with run.database.transaction() as tx:
                await imports.finish_import(tx, run.org_id, source.digest, run.clock.now())
        return self._report

    async def _store_rows(self, rows: Rows) -> None:
        lines = iter(rows)
        ahead = asyncio.create_task(self._reading.read(lines))
        try:
            while chunk := await ahead:
                chunk.share = rows.share
                ahead = asyncio.create_task(self._reading.read(lines))
                await self._store_chunk(chunk)
            await self._end_begun()
        finally:
            await stop(ahead, *(each.place.task for each in self._begun))

    async def _store_chunk(self, chunk: Chunk) -> None:
        """Store a chunk; its last piece may still be under way then."""
        self._run.rejects.flush()  # before anything says that these lines are done
        self._run.past.memory.own(await self._run.months.add(chunk.events.ats_us))
        if not chunk.events:
            await self._end_begun()
            await self._advance(chunk, None)
        while chunk.begun < len(chunk.events):
            await self._begin_piece(chunk)

    async def _begin_piece(self, chunk: Chunk) -> None:
        """Begin to store some of what is left, and see to the end what was begun long before."""
        run = self._run
        start, end = chunk.begun, chunk.begun + lockable(run.past, chunk.events, chunk.begun, run.size.most)
        given = chunk.events.span(start, end)
        digests = set(given.key_digests)
        if not all(digests.isdisjoint(each.key_digests) for each in self._begun):
            await self._end_begun()  # they may hold some of these keys
            return
        before = self._begun[-1].place if self._begun else None
        place = Place(before, lambda place: self._advance(chunk, given, place))
        self._begun.append(_Begun(place, chunk, end, digests))
        chunk.begun = end
        if len(self._begun) > AHEAD:
            await self._end_first()

    async def _end_begun(self) -> None:
        """See to the end what was begun."""
        while self._begun:
            await self._end_first()

    async def _end_first(self) -> None:
        """See the first that was begun to its end; should it not be stored as it was given, all of them, one after the other."""
        first = self._begun.popleft()
        if await self._ended(first):
            return
        others = list(self._begun)
        self._begun.clear()
        await stop(*(each.place.task for each in others))
        for each in (first, *others):
            await self._store_alone(each)

    async def _ended(self, begun: _Begun) -> bool:
        """Wait for a piece; return whether it was stored as it was given."""
        try:
            await begun.place.task
        except ConflictError:
            self._run.past.repeats = True  # the usual reason
        except (RefusedDataError, TooManyLocksError, MovedError, PutOffError):
            pass
        else:
            return True
        return False

    async def _store_alone(self, begun: _Begun) -> None:
        """Store what a piece should have stored, one after the other in as many as it takes."""
        chunk = begun.chunk
        while chunk.done < begun.end:
            await self._store_piece(chunk, begun.end)
        chunk.begun = chunk.done

    async def _store_piece(self, chunk: Chunk, end: int) -> None:
        """Store some of what is left up to `end`; an event that Postgres refuses is refused once it stands alone."""
        run = self._run
        most = min(lockable(run.past, chunk.events, chunk.done, run.size.most), end - chunk.done)
        given = chunk.events.span(chunk.done, chunk.done + most)
        try:
            await self._commit(chunk, given)
        except TooManyLocksError:
            run.size.most = max(most // 2, 1)
        except RefusedDataError as error:
            if most > 1:
                run.size.most = most // 2
                return
            refusal = self._reading.refuse(chunk.lines[chunk.done], chunk.texts[chunk.done], refusal_of(error))
            insort(chunk.refusals, refusal, key=attrgetter("line"))
            run.rejects.flush()
            await self._advance(chunk, None, refused=1)

    async def _commit(self, chunk: Chunk, events: PastEvents) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._advance(chunk, events)
            except ConflictError:
                if not tries_left:
                    raise
                if self._run.past.repeats:  # else that is the usual reason, and helps at once
                    await asyncio.sleep(PAUSE_SECONDS * 2 ** (TRIES - 1 - tries_left))
                self._run.past.repeats = True
        raise AssertionError("the loop above returns or raises")

    async def _advance(
        self, chunk: Chunk, events: PastEvents | None, place: Place | None = None, *, refused: int = 0
    ) -> None:
        """Store events, if there are any, and note how far the file is then, in one transaction.

        With a place in line, what can be done before its turn is.
        """
        if place is not None:
            await place.wait_to_claim()
        run, at, since_ns = self._run, self._run.clock.now(), monotonic_ns()
        begun_ns = since_ns  # its turn
        async with run.database.transaction() as tx:
            piece = Piece(refused, 0, 0)
            if events is not None:
                claimed, expected = await self._claim(tx, events, place, at)
                begun_ns = monotonic_ns()
                piece = await store_rest(tx, run.past, events, claimed, expected, at)
            line = chunk.line_after(piece.taken)
            told = [each for each in chunk.refusals[chunk.told :] if each.line <= line]
            brought = imports.Progress(line, piece.stored, piece.duplicates, len(told))
            advance = imports.advance_import(run.org_id, self._source.digest, brought, at)
            await calls.run(tx, *piece.writes, advance, COMMIT)
        run.past.memory.keep(piece.new, at)
        if events is not None:
            now_ns = monotonic_ns()
            run.size.adapt(piece.taken, now_ns - begun_ns, now_ns - since_ns)
        chunk.done += piece.taken
        chunk.told += len(told)
        self._tell(chunk, piece, told)

    async def _claim(
        self, tx: Transaction, events: PastEvents, place: Place | None, at: datetime
    ) -> tuple[Claimed, list[str]]:
        """Do what comes before the turn of a piece: claim its keys, and, in line, store what can be; return that as `store_rest` takes it."""
        claimed = await claim(tx, self._run.past, events, at)
        if place is None:
            return claimed, [""] * len(claimed.events)
        place.claimed.set()
        expected = await store_expected(tx, self._run.past, claimed)
        await place.wait_to_store()
        return claimed, expected

    def _tell(self, chunk: Chunk, piece: Piece, told: list[Refusal]) -> None:
        of_piece = ImportReport(0, piece.stored, piece.duplicates, len(told), refusals=tuple(told))
        self._report = self._report.plus(of_piece)
        if chunk.done == len(chunk.events):
            self._report = self._report.plus(ImportReport(read=chunk.rows))
            self._told.tell(self._source, self._report, chunk.share)
