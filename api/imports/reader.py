"""Read ahead: convert rows of a file to events in columns, in chunks and in steps so short that storing continues.

`BatchSize` decides how many of them one transaction tries to store.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

import msgspec

from api.clock import Clock, monotonic_ns
from api.imports.errors import RejectedRow, Rejects
from api.imports.formats import HistoryFile
from api.imports.row import Row
from api.imports.rows import PastEvents, PastReader
from workbench.language.problem import Problems

CHUNK_ROWS = 20_000  # read ahead; also the most that one transaction stores
FIRST_CHUNK_ROWS = 2_000  # doubled from chunk to chunk, so that the first rows are stored soon
MAX_STEP_ROWS = 250
MIN_STEP_ROWS = 50
STEP_NS = 2_000_000  # between two steps the event loop serves the connections to Postgres

MIN_BATCH_EVENTS = 250
TURN_NS = 300_000_000  # a batch locks contacts during its turn, and live ingest waits half a second for a lock
TRANSACTION_NS = 3 * TURN_NS  # a transaction holds its keys from the start, and waits for the batches ahead


class Chunk(msgspec.Struct, eq=False):
    """Up to CHUNK_ROWS rows: the valid events with their lines and texts, and the refusals by line.

    `begun`: how many of the events are stored or being stored. `done`: how many are stored. `reported`: the number of
    refusals up to the last line that is done.
    """

    events: PastEvents
    rows: int = 0
    last_line: int = 0
    share: float = 0.0
    lines: list[int] = []
    texts: list[bytes] = []
    refusals: list[RejectedRow] = []
    begun: int = 0
    done: int = 0
    reported: int = 0

    def line_after(self, taken: int) -> int:
        """Return the line up to which everything will be done after `taken` more events."""
        done = self.done + taken
        return self.last_line if done == len(self.lines) else self.lines[done] - 1


class RowReader:
    """Reads the rows of one file. `named`: refusals name the file, because there are several."""

    def __init__(self, reader: PastReader, clock: Clock, rejects: Rejects, source: HistoryFile, *, named: bool) -> None:
        self._reader, self._clock, self._rejects, self._source = reader, clock, rejects, source
        self._name = source.name if named else ""
        self._chunk_rows = FIRST_CHUNK_ROWS
        self._step_rows = MIN_STEP_ROWS

    async def read(self, rows: Iterator[Row]) -> Chunk | None:
        """Read the next chunk, or None at the end."""
        chunk = Chunk(PastEvents(self._reader.org_id))
        max_rows = min(self._chunk_rows, CHUNK_ROWS)
        self._chunk_rows = min(2 * max_rows, CHUNK_ROWS)
        while chunk.rows < max_rows and (step := list(islice(rows, self._step_rows))):
            since_ns = monotonic_ns()
            readable = [row for row in step if not row[2]]
            events, problems = self._reader.read([row[1] for row in readable], self._clock.now_us())
            refused = [row for row in step if row[2]]
            if problems:
                refused += [(*readable[position][:2], problems[position]) for position in problems]
                readable = [row for position, row in enumerate(readable) if position not in problems]
            chunk.events.extend(events)
            chunk.lines += [row[0] for row in readable]
            chunk.texts += [row[1] for row in readable]
            chunk.refusals += [self.refuse(*row) for row in sorted(refused, key=itemgetter(0))]
            fitting = len(step) * STEP_NS // max(monotonic_ns() - since_ns, 1)
            self._step_rows = min(max(fitting, MIN_STEP_ROWS), MAX_STEP_ROWS)
            chunk.rows += len(step)
            chunk.last_line = step[-1][0]
            await asyncio.sleep(0)  # a batch being stored waits for the event loop at each of its round trips
        return chunk if chunk.rows else None

    def refuse(self, line: int, text: bytes, problems: Problems) -> RejectedRow:
        """Write a refused row to the file of refusals; return its entry in the report."""
        refusal = RejectedRow(line, problems, self._name)
        self._rejects.add(self._source, refusal, text)
        return refusal


class BatchSize:
    """The number of `events` that a transaction tries to store, adapted to the duration of transactions."""

    def __init__(self) -> None:
        self.events = CHUNK_ROWS

    def adapt(self, taken: int, turn_ns: int, transaction_ns: int) -> None:
        """Shrink after a transaction of `taken` events that took too long, grow after any other."""
        # If it took fewer events than were tried, only its turn counts: it may have waited for larger batches ahead.
        excess = max(turn_ns / TURN_NS, transaction_ns / TRANSACTION_NS if taken >= self.events else 0.0)
        if excess > 1:
            self.events = max(int(taken / excess), MIN_BATCH_EVENTS)
        else:
            # Grow by an eighth at a time (small ones double): a batch that is much too large holds its locks before it
            # can be measured.
            growth = max(self.events + self.events // 8, 2 * min(self.events, MIN_BATCH_EVENTS))
            self.events = min(growth, CHUNK_ROWS)
