"""Live ingest: requests of this process are gathered into micro-batches and answered after their commit.

A writer takes whatever has gathered while it was busy with the batch before, so a quiet service answers at once and a
busy one writes large batches. The queue is bounded: past it, requests are refused at once instead of waiting. Whatever
holds a writer up (Postgres is away, or stands still), nobody waits longer than ANSWER_WITHIN for an answer. Who stops
waiting is forgotten, unless a writer has begun: then the event may be stored, and a retry hears so.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from api.clock import Clock, from_us, monotonic_ns, token
from api.ingest.arrival import Arrival, Reader
from api.ingest.matching import Triggers
from api.ingest.notices import Notices
from api.ingest.outcome import Outcome, RateLimited, Rejected, Stored, Unavailable
from api.ingest.queue import Queue
from api.ingest.rate import Buckets
from api.ingest.transaction import store_batch
from api.ingest.writing import refusal_of
from api.keyring import Keyring
from api.language.problem import Problems
from api.store.database import ConflictError, Database, RefusedDataError, UnavailableError

MOST_PER_BATCH = 256
MOST_WAITING = 8_192
TRIES = 3
BREATH = 65_536  # bytes
ANSWER_WITHIN = 1.8  # seconds, of the two that are promised; the full queue is about one second of work
SWEEP_EVERY = 0.1
BUSY = 8
GATHER_SECONDS = 0.001
CROWD = 16  # events; below that a second writer only makes two small batches of one
FULL: Outcome = Unavailable("too many events are waiting, or the service stops")

_log = logging.getLogger("workbench.ingest")


Answer = Callable[[list[Outcome]], None]
"""Takes the outcomes of a request's events, in order. It must not raise and not wait."""


class _Request(msgspec.Struct, eq=False):
    """The valid events of one HTTP request, and where their outcomes go; `answer` None: nobody waits any more."""

    arrivals: list[Arrival]
    answer: Answer | None
    since_ns: int

    def settle(self, outcomes: list[Outcome]) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(outcomes)


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
        self._clock = clock
        self._buckets = buckets
        self._reader = Reader(clock, token(8).hex())
        self._triggers = Triggers(keyring)
        self._notices = notices
        self._queue = Queue[_Request](MOST_WAITING)
        self._arrived = asyncio.Event()
        self._writer_count = writers
        self._stopping = False
        self._busy = 0
        self._writers: list[asyncio.Task[None]] = []
        self._unanswered: deque[_Request] = deque()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether every writer runs."""
        return bool(self._writers) and not any(writer.done() for writer in self._writers)

    async def start(self) -> None:
        """Start connecting, and the writers."""
        await self._database.open()
        self._writers = [asyncio.create_task(self._write_until_stopped()) for _ in range(self._writer_count)]
        self._sweeper = asyncio.create_task(self._lose_patience())

    async def stop(self) -> None:
        """Write what is waiting, then stop."""
        self._stopping = True
        self._arrived.set()
        await asyncio.gather(*self._writers)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._database.close()

    async def ingest(
        self, org_id: int, raws: list[bytes], test_key: bool, since_ns: int | None = None
    ) -> list[Outcome]:
        """Return the outcome of each event of a request, in order, once it is committed (or refused).

        `since_ns`: from when on the caller has been waiting, on the monotonic clock.
        """
        granted = self._buckets.take(org_id, len(raws), monotonic_ns())
        if not self._queue.fits(org_id, granted):  # said before they are read, which costs more than to say it
            return [FULL] * granted + [RateLimited()] * (len(raws) - granted)
        org_keys = self._keyring.of(org_id)
        read: list[Arrival | Problems] = []
        since_breath = 0
        for raw in raws[:granted]:
            read.append(self._reader.read(org_id, org_keys, raw, test_key))
            since_breath += len(raw)
            if since_breath > BREATH:  # large bodies let other requests have their turn
                await asyncio.sleep(0)
                since_breath = 0
        for raw, each in zip(raws, read, strict=False):
            if not isinstance(each, Arrival):
                self._notices.note_rejected(org_id, raw, each)
        arrivals = [each for each in read if isinstance(each, Arrival)]
        stored = iter(await self._stored(org_id, arrivals, since_ns or monotonic_ns()) if arrivals else ())
        outcomes: list[Outcome] = [next(stored) if isinstance(each, Arrival) else Rejected(each) for each in read]
        return outcomes + [RateLimited()] * (len(raws) - granted)

    def accept(self, org_id: int, raw: bytes, test_key: bool, since_ns: int, answer: Answer) -> bool:
        """Take one event whose outcome is told to `answer`; return False, and leave no trace, for all but the usual case.

        What is invalid, over the rate or too much goes the way of `ingest`, which says so.
        """
        if self._stopping or not self._queue.fits(org_id, 1):
            return False
        arrival = self._reader.read(org_id, self._keyring.of(org_id), raw, test_key)
        if not isinstance(arrival, Arrival) or not self._buckets.take(org_id, 1, since_ns):
            return False
        return self._submit(org_id, _Request([arrival], answer, since_ns))

    def _submit(self, org_id: int, request: _Request) -> bool:
        if self._stopping or not self._queue.put(org_id, request, len(request.arrivals)):
            return False
        self._unanswered.append(request)
        self._arrived.set()
        return True

    async def _stored(self, org_id: int, arrivals: list[Arrival], since_ns: int) -> list[Outcome]:
        answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        request = _Request(arrivals, answered.set_result, since_ns)
        if not self._submit(org_id, request):
            return [FULL] * len(arrivals)
        try:
            return await answered
        finally:
            request.answer = None

    async def _lose_patience(self) -> None:
        """Answer what waits too long. One sweep for all: a timer per request would cost a tenth of its CPU time."""
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            oldest_ns = monotonic_ns() - int(ANSWER_WITHIN * 1e9)
            while self._unanswered and (self._unanswered[0].answer is None or self._unanswered[0].since_ns < oldest_ns):
                request = self._unanswered.popleft()
                request.settle([Unavailable("the database takes too long")] * len(request.arrivals))

    async def _write_until_stopped(self) -> None:
        while True:
            if self._queue and (not self._busy or self._queue.waiting >= CROWD):
                self._busy += 1
                requests = [each for each in self._queue.take(MOST_PER_BATCH) if each.answer is not None]
                if requests:
                    await self._answer(requests)
                self._busy -= 1
                if len(requests) >= BUSY:
                    await asyncio.sleep(GATHER_SECONDS)
            elif self._stopping and not self._queue:
                self._arrived.set()  # for a writer that waits for this one
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def _answer(self, requests: list[_Request]) -> None:
        arrivals = [arrival for request in requests for arrival in request.arrivals]
        outcomes = await self._write(arrivals)
        for arrival, outcome in zip(arrivals, outcomes, strict=True):
            if not isinstance(outcome, Stored):
                self._notices.note_outcome(arrival, outcome)
        end = 0
        for request in requests:
            start, end = end, end + len(request.arrivals)
            request.settle(outcomes[start:end])

    async def _write(self, arrivals: list[Arrival]) -> list[Outcome]:
        """Write a batch; when one event breaks it, write each alone, so that only the poisoned one fails."""
        failure: Outcome
        try:
            return await self._commit(arrivals)
        except RefusedDataError as error:
            _log.warning("refused_by_database", extra={"events": len(arrivals), "reason": str(error)})
            failure = Rejected(refusal_of(error))
        except Exception as error:  # noqa: BLE001  the edge of the writer: a bug must not leave requests unanswered
            _log.exception("write_failed", extra={"events": len(arrivals)})
            failure = Unavailable(type(error).__name__)
        if len(arrivals) == 1:
            return [failure]
        return [outcome for arrival in arrivals for outcome in await self._write([arrival])]

    async def _commit(self, arrivals: list[Arrival]) -> list[Outcome]:
        for tries_left in reversed(range(TRIES)):
            at = from_us(self._clock.now_us())
            try:
                async with self._database.transaction() as tx:
                    return await store_batch(tx, arrivals, self._triggers, at)
            except ConflictError as error:
                if not tries_left:
                    return [Unavailable(str(error))] * len(arrivals)
            except UnavailableError as error:
                _log.warning("batch_unavailable", extra={"events": len(arrivals), "reason": str(error)})
                return [Unavailable(str(error))] * len(arrivals)
        raise AssertionError("unreachable")
