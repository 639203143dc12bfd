"""Live ingest: requests of this process are gathered into micro-batches and answered after their commit.

A writer takes whatever has gathered while it was busy with the batch before, so a quiet service answers at once and a
busy one writes large batches. The queue is bounded: past it, requests are refused at once instead of waiting. Whatever
holds a writer up (Postgres is away, or stands still), nobody waits longer than ANSWER_WITHIN for an answer. Who stops
waiting is forgotten, unless a writer has begun: then the event may be stored, and a retry hears so.
"""

import asyncio
import logging
from collections import deque

import msgspec

from api.clock import Clock, from_us, monotonic_ns, token
from api.ingest.arrival import Arrival, Reader
from api.ingest.matching import Triggers
from api.ingest.outcome import Outcome, RateLimited, Rejected, Unavailable
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

_log = logging.getLogger("workbench.ingest")


class _Request(msgspec.Struct, eq=False):
    """The valid events of one HTTP request, and where their outcomes go."""

    arrivals: list[Arrival]
    answered: "asyncio.Future[dict[str, Outcome]]"
    since_ns: int


class Pipeline:
    """The way of events into the store, for one API process; it owns `database`."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock, buckets: Buckets, writers: int = 2) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._buckets = buckets
        self._reader = Reader(clock, token(8).hex())
        self._triggers = Triggers(keyring)
        self._waiting: deque[_Request] = deque()
        self._waiting_events = 0
        self._arrived = asyncio.Event()
        self._writer_count = writers
        self._stopping = False
        self._busy = 0
        self._writers: list[asyncio.Task[None]] = []
        self._unanswered: list[_Request] = []
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
        org_keys = self._keyring.of(org_id)
        read: list[Arrival | Problems] = []
        since_breath = 0
        for raw in raws[:granted]:
            read.append(self._reader.read(org_id, org_keys, raw, test_key))
            since_breath += len(raw)
            if since_breath > BREATH:  # large bodies let other requests have their turn
                await asyncio.sleep(0)
                since_breath = 0
        arrivals = [each for each in read if isinstance(each, Arrival)]
        stored = await self._submit(arrivals, since_ns or monotonic_ns()) if arrivals else {}
        outcomes: list[Outcome] = [
            stored[each.event_id] if isinstance(each, Arrival) else Rejected(each) for each in read
        ]
        return outcomes + [RateLimited()] * (len(raws) - granted)

    async def _submit(self, arrivals: list[Arrival], since_ns: int) -> dict[str, Outcome]:
        if self._stopping or self._waiting_events + len(arrivals) > MOST_WAITING:
            return _all(arrivals, Unavailable("too many events are waiting, or the service stops"))
        request = _Request(arrivals, asyncio.get_running_loop().create_future(), since_ns)
        self._waiting.append(request)
        self._waiting_events += len(arrivals)
        self._unanswered.append(request)
        self._arrived.set()
        return await request.answered

    async def _lose_patience(self) -> None:
        """Answer what waits too long. One sweep for all: a timer per request would cost a tenth of its CPU time."""
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            oldest_ns = monotonic_ns() - int(ANSWER_WITHIN * 1e9)
            self._unanswered = [each for each in self._unanswered if not each.answered.done()]
            for request in self._unanswered:
                if request.since_ns < oldest_ns:
                    request.answered.set_result(_all(request.arrivals, Unavailable("the database takes too long")))

    async def _write_until_stopped(self) -> None:
        while True:
            if self._waiting and (not self._busy or self._waiting_events >= CROWD):
                self._busy += 1
                requests = self._take()
                if requests:
                    await self._answer(requests)
                self._busy -= 1
                if len(requests) >= BUSY:
                    await asyncio.sleep(GATHER_SECONDS)
            elif self._stopping and not self._waiting:
                self._arrived.set()  # for a writer that waits for this one
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def _take(self) -> list[_Request]:
        taken: list[_Request] = []
        events = 0
        while self._waiting and (not taken or events + len(self._waiting[0].arrivals) <= MOST_PER_BATCH):
            request = self._waiting.popleft()
            self._waiting_events -= len(request.arrivals)
            if not request.answered.done():  # done: nobody waits for it any more
                events += len(request.arrivals)
                taken.append(request)
        return taken

    async def _answer(self, requests: list[_Request]) -> None:
        outcomes = await self._write([arrival for request in requests for arrival in request.arrivals])
        for request in requests:
            if not request.answered.done():
                request.answered.set_result({each.event_id: outcomes[each.event_id] for each in request.arrivals})

    async def _write(self, arrivals: list[Arrival]) -> dict[str, Outcome]:
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
            return _all(arrivals, failure)
        outcomes: dict[str, Outcome] = {}
        for arrival in arrivals:
            outcomes.update(await self._write([arrival]))
        return outcomes

    async def _commit(self, arrivals: list[Arrival]) -> dict[str, Outcome]:
        for tries_left in reversed(range(TRIES)):
            at = from_us(self._clock.now_us())
            try:
                async with self._database.transaction() as tx:
                    return await store_batch(tx, arrivals, self._triggers, at)
            except ConflictError as error:
                if not tries_left:
                    return _all(arrivals, Unavailable(str(error)))
            except UnavailableError as error:
                _log.warning("batch_unavailable", extra={"events": len(arrivals), "reason": str(error)})
                return _all(arrivals, Unavailable(str(error)))
        raise AssertionError("unreachable")


def _all(arrivals: list[Arrival], outcome: Outcome) -> dict[str, Outcome]:
    return {arrival.event_id: outcome for arrival in arrivals}
