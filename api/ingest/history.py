"""The import of history: files of past events, read by the same rules as live ones except for their age.

An imported event is created when it occurred, so it lands in the month it belongs to. It triggers nothing and has no rate
limit. A file is stored in chunks, each one transaction with the locks of live ingest, in their order; because every event has
an idempotency key, an import that broke off is resumed by starting it again, and one that runs twice stores nothing new.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from api.clock import Clock, from_us, uuid7
from api.ingest.arrival import Arrival
from api.ingest.identifiers import People, body_digest, idempotency_key
from api.ingest.past import store_past
from api.ingest.rows import Row, read_rows
from api.ingest.writing import refusal_of
from api.keyring import Keyring, OrgKeys
from api.language.event import Event, read_event
from api.language.problem import Problem, Problems
from api.store import history as store
from api.store.access import find_organization
from api.store.database import ConflictError, Database, RefusedDataError

CHUNK = 5_000  # rows read, and at most stored, at a time
MOST_IDENTIFIERS = 1_000  # in one transaction: each may be a lock, and Postgres has about 6,400 for everybody
OLDEST_MONTH = datetime(2010, 1, 1, tzinfo=UTC)  # what is older stays outside the months
PEOPLE_REMEMBERED = 100_000  # in a history many come again
TRIES = 5
_REASONS = 20


class UnknownOrganizationError(Exception):
    """There is no organization of that name."""


class Refusal(msgspec.Struct, frozen=True):
    """A row that was not stored: the number of its line, from 1, and what is wrong with it."""

    line: int
    problems: Problems

    def __str__(self) -> str:
        return f"line {self.line}: " + "; ".join(map(str, self.problems))


class ImportReport(msgspec.Struct, frozen=True):
    """What became of the rows of a file; `refusals` are the first of the `rejected`."""

    read: int = 0
    stored: int = 0
    duplicates: int = 0
    rejected: int = 0
    refusals: tuple[Refusal, ...] = ()

    def __str__(self) -> str:
        counts = (
            f"{self.read:,} read: {self.stored:,} stored, {self.duplicates:,} duplicates, {self.rejected:,} rejected"
        )
        more = self.rejected - len(self.refusals)
        return "\n".join([counts, *map(str, self.refusals), *([f"and {more:,} more"] if more else [])])


async def import_file(
    dsn: str, keyring: Keyring, org_name: str, path: Path, progress: Callable[[int], None]
) -> ImportReport:
    """Import a file for an organization; `progress` hears how many rows are done.

    Raises UnknownOrganizationError, UnreadableFileError, and UnavailableError when Postgres went away: begin again then.
    """
    rows = read_rows(path)
    database = Database(dsn, size=2, statement_ms=60_000)
    await database.open()
    try:
        clock = Clock()
        await database.calibrate(clock)
        async with database.transaction() as tx:
            org_id = await find_organization(tx, org_name)
        if org_id is None:
            raise UnknownOrganizationError(f"there is no organization named {org_name}")
        return await _Import(database, clock, org_id, keyring.of(org_id)).run(rows, progress)
    finally:
        await database.close()


class _Chunk(msgspec.Struct):
    """What one reading of up to CHUNK rows gave."""

    read: int
    arrivals: list[tuple[int, Arrival]] = []
    refusals: list[Refusal] = []


class _Import:
    """One run of an import."""

    def __init__(self, database: Database, clock: Clock, org_id: int, org_keys: OrgKeys) -> None:
        self._database, self._clock = database, clock
        self._org_id, self._org_keys = org_id, org_keys
        self._people = People(PEOPLE_REMEMBERED)
        self._months: set[datetime] = set()
        self._report = ImportReport()

    async def run(self, rows: Iterator[Row], progress: Callable[[int], None]) -> ImportReport:
        """Store every row. Reading and writing take turns: a reading thread gained a tenth, because both need the interpreter."""
        for chunk in self._chunks(rows):
            await self._store_chunk(chunk)
            progress(self._report.read)
        return self._report

    def _chunks(self, rows: Iterator[Row]) -> Iterator[_Chunk]:
        while taken := list(islice(rows, CHUNK)):
            chunk = _Chunk(len(taken))
            for line, raw in taken:
                arrival = self._arrival(raw)
                if isinstance(arrival, Arrival):
                    chunk.arrivals.append((line, arrival))
                else:
                    chunk.refusals.append(Refusal(line, arrival))
            yield chunk

    def _arrival(self, raw: bytes | Problems) -> Arrival | Problems:
        if isinstance(raw, tuple):
            return raw
        event = read_event(raw, self._clock.now_us(), history=True)
        if isinstance(event, tuple):
            return event
        if event.occurred_at_us is None:
            return (Problem("occurredAt", "is required in an import"),)
        if event.test:
            return (Problem("test", "a dry run is not history"),)
        return self._dated(event, event.occurred_at_us, raw)

    def _dated(self, event: Event, occurred_us: int, raw: bytes) -> Arrival:
        key = idempotency_key(self._org_keys, event, occurred_us, None)
        keys, email = self._people.indexed(self._org_id, self._org_keys, event.identifiers)
        return Arrival(
            self._org_id,
            event,
            uuid7(max(occurred_us, 0)),
            key,
            self._org_keys.key_digest(key),
            body_digest(raw),
            occurred_us,
            keys,
            email,
            "",
            dry=False,
        )

    async def _store_chunk(self, chunk: _Chunk) -> None:
        await self._add_months(chunk)
        self._count(read=chunk.read, refusals=chunk.refusals)
        for piece in _pieces(chunk.arrivals):
            await self._store_piece(piece)

    async def _add_months(self, chunk: _Chunk) -> None:
        moments = {each.occurred_us // 86_400_000_000 for _, each in chunk.arrivals}
        months = {_month(from_us(day * 86_400_000_000)) for day in moments}
        for month in sorted(months - self._months):
            self._months.add(month)
            if month >= OLDEST_MONTH:
                async with self._database.transaction() as tx:
                    await store.add_month(tx, month)

    async def _store_piece(self, piece: list[tuple[int, Arrival]]) -> None:
        """Store arrivals in one transaction; when Postgres refuses a value, halve until it stands alone."""
        try:
            await self._commit([arrival for _, arrival in piece])
        except RefusedDataError as error:
            if len(piece) == 1:
                self._count(refusals=[Refusal(piece[0][0], refusal_of(error))])
                return
            middle = len(piece) // 2
            await self._store_piece(piece[:middle])
            await self._store_piece(piece[middle:])

    async def _commit(self, arrivals: list[Arrival]) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._database.transaction() as tx:
                    stored = await store_past(tx, self._org_id, arrivals, self._clock.now())
            except ConflictError:
                if not tries_left:
                    raise
            else:
                self._count(stored=stored, duplicates=len(arrivals) - stored)
                return

    def _count(
        self, *, read: int = 0, stored: int = 0, duplicates: int = 0, refusals: list[Refusal] | None = None
    ) -> None:
        was, new = self._report, tuple(refusals or ())
        self._report = ImportReport(
            was.read + read,
            was.stored + stored,
            was.duplicates + duplicates,
            was.rejected + len(new),
            (was.refusals + new)[:_REASONS],
        )


def _pieces(arrivals: list[tuple[int, Arrival]]) -> Iterator[list[tuple[int, Arrival]]]:
    """Cut a chunk so that no piece has more identifiers than a transaction may lock."""
    piece: list[tuple[int, Arrival]] = []
    keys: set[object] = set()
    for line, arrival in arrivals:
        keys.update(arrival.keys)
        piece.append((line, arrival))
        if len(keys) >= MOST_IDENTIFIERS:
            yield piece
            piece, keys = [], set()
    if piece:
        yield piece


def _month(moment: datetime) -> datetime:
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
