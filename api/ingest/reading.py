"""Reading ahead of an import: rows of a file become events in columns, a chunk at a time, in steps so short that others get their turn."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

import msgspec

from api.clock import Clock, monotonic_ns
from api.ingest.files.row import Row
from api.ingest.files.sources import Source
from api.ingest.past_arrival import PastEvents, PastReader
from api.ingest.rejects import Rejects
from api.ingest.report import Refusal
from api.language.problem import Problems

CHUNK = 20_000  # rows read ahead, and at most stored in one transaction
FIRST = 1_000  # rows, half of those that are read before anything is stored
STEP = 250  # rows read at most before Postgres is looked after
SHORTEST_STEP = 50
STEP_NS = 2_000_000  # how long reading them may take


class Chunk(msgspec.Struct, eq=False):
    """What one reading of up to CHUNK rows gave: the last line, the events with their lines and texts, and the refusals by line.

    `begun`: how many of the events are stored or being stored; `done`: how many are; `told`: the number of refusals among the
    lines that are.
    """

    events: PastEvents
    rows: int = 0
    last: int = 0
    share: float = 0.0
    lines: list[int] = []
    texts: list[bytes] = []
    refusals: list[Refusal] = []
    begun: int = 0
    done: int = 0
    told: int = 0

    def line_after(self, taken: int) -> int:
        """Return the line up to which all is done once `taken` more events are."""
        reached = self.done + taken
        return self.last if reached == len(self.lines) else self.lines[reached] - 1


class Reading:
    """Reads the rows of one file; `named`: refusals name the file, for there are several."""

    def __init__(self, reader: PastReader, clock: Clock, rejects: Rejects, source: Source, *, named: bool) -> None:
        self._reader, self._clock, self._rejects, self._source = reader, clock, rejects, source
        self._name = source.name if named else ""
        self._rows_ahead = FIRST
        self._step = SHORTEST_STEP

    async def read(self, rows: Iterator[Row]) -> Chunk | None:
        """Read up to CHUNK rows, fewer at the beginning; None at the end."""
        chunk = Chunk(PastEvents(self._reader.org_id))
        most = self._rows_ahead = min(2 * self._rows_ahead, CHUNK)
        while chunk.rows < most and (some := list(islice(rows, self._step))):
            since_ns = monotonic_ns()
            self._read_step(some, chunk)
            fitting = len(some) * STEP_NS // max(monotonic_ns() - since_ns, 1)
            self._step = min(max(fitting, SHORTEST_STEP), STEP)
            chunk.rows += len(some)
            chunk.last = some[-1][0]
            await asyncio.sleep(0)
        return chunk if chunk.rows else None

    def refuse(self, line: int, text: bytes, problems: Problems) -> Refusal:
        """Keep a refused row with its reasons; return what the report says of it."""
        refusal = Refusal(line, problems, self._name)
        self._rejects.add(self._source, refusal, text)
        return refusal

    def _read_step(self, rows: list[Row], chunk: Chunk) -> None:
        sound = [row for row in rows if not row[2]]
        texts = [row[1] for row in sound]
        events, refused = self._reader.read(texts, self._clock.now_us())
        found = [row for row in rows if row[2]]
        if refused:
            found += [(*sound[position][:2], problems) for position, problems in refused.items()]
            sound = [row for position, row in enumerate(sound) if position not in refused]
            texts = [row[1] for row in sound]
        chunk.events.extend(events)
        chunk.lines += [row[0] for row in sound]
        chunk.texts += texts
        chunk.refusals += [self.refuse(*row) for row in sorted(found, key=itemgetter(0))]
