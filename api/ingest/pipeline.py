"""Live ingest: requests of this process are read, gathered into micro-batches, and answered after their commit.

The queue is bounded, in events and in bytes: past it, requests are refused at once instead of waiting. Whatever holds the
writers up (Postgres is away, or stands still), nobody waits longer than ANSWER_WITHIN for an answer. Who stops waiting is
forgotten, unless a writer has begun: then the event may be stored, and a retry hears so.
"""

import asyncio

from api.clock import Clock, monotonic_ns, token
from api.ingest.arrival import Arrival, Reader
from api.ingest.matching import Triggers
from api.ingest.meters import IngestMeters
from api.ingest.notices import Notices
from api.ingest.outcome import Outcome, RateLimited, Rejected, Unavailable
from api.ingest.queue import Queue
from api.ingest.rate import Buckets
from api.ingest.writers import Answer, Request, Writers
from api.keyring import Keyring
from api.language.problem import Problems
from api.store.database import Database

MOST_WAITING = 8_192  # events, one of more than HEAVY bytes counting for several
HEAVY = 4_096
BREATH = 65_536  # bytes
ANSWER_WITHIN = 1.8  # seconds, of the two that are promised; the full queue is about one second of work
SWEEP_EVERY = 0.1
FULL: Outcome = Unavailable("too many events are waiting, or the service stops")


class Pipeline:
    """The way of events into the store, for one API process; it owns `database`."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        clock: Clock,
        buckets: Buckets,
        notices: Notices,
        writers: int = 2,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._buckets = buckets
        self._notices = notices
        self._reader = Reader(clock, token(8).hex())
        self._queue = Queue[Request](MOST_WAITING)
        self.meters = IngestMeters()
        self._writers = Writers(database, clock, Triggers(keyring), self._queue, notices.note_outcome, self.meters)
        self._writer_count = writers
        self._stopping = False
        self._unanswered: list[Request] = []
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether every writer runs."""
        return self._writers.alive

    @property
    def waiting(self) -> int:
        """The weight of what waits to be written, of at most MOST_WAITING."""
        return self._queue.waiting

    @property
    def database(self) -> Database:
        """The connections of the writers."""
        return self._database

    def oldest_seconds(self) -> float:
        """Return how long the oldest request has been waiting for its answer; 0 when none does."""
        since_ns = [each.since_ns for each in self._unanswered if each.answer is not None]
        return (monotonic_ns() - min(since_ns)) / 1e9 if since_ns else 0.0

    async def start(self) -> None:
        """Start connecting, and the writers."""
        await self._database.open()
        self._writers.start(self._writer_count)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Write what is waiting, then stop."""
        self._stopping = True
        await self._writers.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._database.close()

    async def ingest(
        self, org_id: int, raws: list[bytes], test_key: bool, since_ns: int | None = None, request_id: str | None = None
    ) -> list[Outcome]:
        """Return the outcome of each event of a request, in order, once it is committed (or refused).

        `since_ns`: from when on the caller has been waiting, on the monotonic clock.
        """
        granted = self._buckets.take(org_id, len(raws), monotonic_ns())
        if not self._queue.fits(org_id, granted):  # said before they are read, which costs more than to say it
            return self._turned_away(FULL, granted) + self._turned_away(RateLimited(), len(raws) - granted)
        read = await self._read(org_id, raws[:granted], test_key, request_id)
        for raw, each in zip(raws, read, strict=False):
            if not isinstance(each, Arrival):
                self._notices.note_rejected(org_id, raw, each)
        arrivals = [each for each in read if isinstance(each, Arrival)]
        stored = iter(await self._stored(org_id, arrivals, _weight(raws), since_ns or monotonic_ns()))
        outcomes: list[Outcome] = [next(stored) if isinstance(each, Arrival) else Rejected(each) for each in read]
        return outcomes + self._turned_away(RateLimited(), len(raws) - granted)

    def accept(
        self, org_id: int, raw: bytes, test_key: bool, since_ns: int, answer: Answer, request_id: str | None = None
    ) -> bool:
        """Take one event whose outcome is told to `answer`; return False, and leave no trace, for all but the usual case.

        What is invalid, over the rate or too much goes the way of `ingest`, which says so.
        """
        if self._stopping or not self._queue.fits(org_id, 1):
            return False
        arrival = self._reader.read(org_id, self._keyring.of(org_id), raw, test_key, request_id)
        if not isinstance(arrival, Arrival) or not self._buckets.take(org_id, 1, since_ns):
            return False
        return self._submit(Request(org_id, [arrival], answer, since_ns), 1 + len(raw) // HEAVY)

    async def _read(
        self, org_id: int, raws: list[bytes], test_key: bool, request_id: str | None
    ) -> list[Arrival | Problems]:
        org_keys = self._keyring.of(org_id)
        read: list[Arrival | Problems] = []
        since_breath = 0
        for raw in raws:
            read.append(self._reader.read(org_id, org_keys, raw, test_key, request_id))
            since_breath += len(raw)
            if since_breath > BREATH:  # large bodies let other requests have their turn
                await asyncio.sleep(0)
                since_breath = 0
        return read

    def _turned_away(self, outcome: Outcome, times: int) -> list[Outcome]:
        self.meters.count([outcome] * times)
        return [outcome] * times

    def _submit(self, request: Request, weight: int) -> bool:
        if self._stopping or not self._queue.put(request.org_id, request, weight):
            return False
        self._unanswered.append(request)
        self._writers.wake()
        return True

    async def _stored(self, org_id: int, arrivals: list[Arrival], weight: int, since_ns: int) -> list[Outcome]:
        if not arrivals:
            return []
        answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        request = Request(org_id, arrivals, lambda outcomes: _resolve(answered, outcomes), since_ns)
        if not self._submit(request, weight):
            return self._turned_away(FULL, len(arrivals))
        try:
            return await answered
        finally:
            request.answer = None

    async def _sweep(self) -> None:
        """Answer what waits too long, and let a writer go past one that stands still.

        One sweep for all: a timer per request would cost a tenth of its CPU time.
        """
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            oldest_ns = monotonic_ns() - int(ANSWER_WITHIN * 1e9)
            self._unanswered = [each for each in self._unanswered if each.answer is not None]
            for request in self._unanswered:
                if request.since_ns < oldest_ns:
                    request.settle([Unavailable("the database takes too long")] * len(request.arrivals), self.meters)
            if self._queue:
                self._writers.wake()


def _resolve(answered: asyncio.Future[list[Outcome]], outcomes: list[Outcome]) -> None:
    if not answered.done():  # else whoever waited has gone
        answered.set_result(outcomes)


def _weight(raws: list[bytes]) -> int:
    return sum(1 + len(raw) // HEAVY for raw in raws)
