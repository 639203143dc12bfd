"""Live ingest in one API process: requests are parsed, queued, written in batches, and answered after their commit.

An event takes these steps: parse (here), queue, and then in one transaction (`store.store_batch`): claim keys, resolve
contacts, match, write, commit.

The queue is bounded in events and in bytes; a request that does not fit is refused at once. If Postgres is down or
hangs, every request is answered within ANSWER_TIMEOUT_S. A request that timed out is dropped from the queue, unless a
writer has begun with it: then its events may be stored, and a retry with the same keys gets the result.
"""

import asyncio

from api.clock import Clock, monotonic_ns, token
from api.crypto import Keyring
from api.ingest.batch_writer import Answer, BatchWriters, IngestMeters, IngestRequest
from api.ingest.match import Triggers
from api.ingest.parse import EventReader, Outcome, ParsedEvent, RateLimited, Rejected, Unavailable
from api.ingest.queue import Queue, TokenBuckets
from api.ingest.rejected import Notices
from api.store.database import Database
from workbench.language.problem import Problems

QUEUE_CAPACITY = 8_192  # events: about one second of work
BYTES_PER_WEIGHT = 4_096  # a larger event counts for several
YIELD_AFTER_BYTES = 65_536  # parsed before other requests of this process get their turn
ANSWER_TIMEOUT_S = 1.8  # docs/contract.md promises an answer within two seconds
SWEEP_INTERVAL_S = 0.1
QUEUE_FULL: Outcome = Unavailable("too many events are waiting, or the service stops")


class Pipeline:
    """The path of events into the store. It owns `database`, the connections of the writers."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        clock: Clock,
        buckets: TokenBuckets,
        notices: Notices,
        writers: int = 2,
    ) -> None:
        self.database = database
        self.meters = IngestMeters()
        self._keyring = keyring
        self._buckets = buckets
        self._notices = notices
        self._reader = EventReader(clock, token(8).hex())
        self._queue = Queue[IngestRequest](QUEUE_CAPACITY)
        self._writers = BatchWriters(database, clock, Triggers(keyring), self._queue, notices.note_outcome, self.meters)
        self._writer_count = writers
        self._stopping = False
        self._unanswered: list[IngestRequest] = []
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._writers.alive

    @property
    def waiting(self) -> int:
        """The weight of the queued events, of at most QUEUE_CAPACITY."""
        return self._queue.waiting

    def oldest_seconds(self) -> float:
        """Return how long the oldest unanswered request has been waiting, or 0."""
        since_ns = [request.since_ns for request in self._unanswered if request.answer is not None]
        return (monotonic_ns() - min(since_ns)) / 1e9 if since_ns else 0.0

    async def start(self) -> None:
        """Connect in the background, and start the writers."""
        await self.database.open()
        self._writers.start(self._writer_count)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Write what is queued, then stop."""
        self._stopping = True
        await self._writers.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.database.close()

    async def ingest(
        self, org_id: int, raws: list[bytes], test_key: bool, since_ns: int | None = None, request_id: str | None = None
    ) -> list[Outcome]:
        """Return the outcome of each event of a request, in order, after its commit or refusal.

        `since_ns`: when the request arrived, on the monotonic clock; its timeout counts from there.
        """
        granted = self._buckets.take(org_id, len(raws), monotonic_ns())
        over_rate = len(raws) - granted
        if not self._queue.fits(org_id, granted):  # parsing first would cost more than the refusal
            return self._refuse(QUEUE_FULL, granted) + self._refuse(RateLimited(), over_rate)
        parsed = await self._parse(org_id, raws[:granted], test_key, request_id)
        for raw, event in zip(raws, parsed, strict=False):
            if not isinstance(event, ParsedEvent):
                self._notices.note_rejected(org_id, raw, event)
        events = [event for event in parsed if isinstance(event, ParsedEvent)]
        weight = sum(1 + len(raw) // BYTES_PER_WEIGHT for raw in raws)
        stored = iter(await self._store(org_id, events, weight, since_ns or monotonic_ns()))
        outcomes: list[Outcome] = [
            next(stored) if isinstance(event, ParsedEvent) else Rejected(event) for event in parsed
        ]
        return outcomes + self._refuse(RateLimited(), over_rate)

    def accept(
        self, org_id: int, raw: bytes, test_key: bool, since_ns: int, answer: Answer, request_id: str | None = None
    ) -> bool:
        """Queue one event and pass its outcome to `answer` later; the fast path of `ingest`.

        Returns False, without side effects, if the event is not valid, over the rate or does not fit; `ingest` then
        reports it.
        """
        if self._stopping or not self._queue.fits(org_id, 1):
            return False
        event = self._reader.read(org_id, self._keyring.of(org_id), raw, test_key, request_id)
        if not isinstance(event, ParsedEvent) or not self._buckets.take(org_id, 1, since_ns):
            return False
        return self._submit(IngestRequest(org_id, [event], answer, since_ns), 1 + len(raw) // BYTES_PER_WEIGHT)

    async def _parse(
        self, org_id: int, raws: list[bytes], test_key: bool, request_id: str | None
    ) -> list[ParsedEvent | Problems]:
        org_keys = self._keyring.of(org_id)
        parsed: list[ParsedEvent | Problems] = []
        unyielded_bytes = 0
        for raw in raws:
            parsed.append(self._reader.read(org_id, org_keys, raw, test_key, request_id))
            unyielded_bytes += len(raw)
            if unyielded_bytes > YIELD_AFTER_BYTES:
                await asyncio.sleep(0)
                unyielded_bytes = 0
        return parsed

    async def _store(self, org_id: int, events: list[ParsedEvent], weight: int, since_ns: int) -> list[Outcome]:
        if not events:
            return []
        answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

        def answer(outcomes: list[Outcome]) -> None:
            if not answered.done():  # done: the client has gone and the task was cancelled
                answered.set_result(outcomes)

        request = IngestRequest(org_id, events, answer, since_ns)
        if not self._submit(request, weight):
            return self._refuse(QUEUE_FULL, len(events))
        try:
            return await answered
        finally:
            request.answer = None

    def _submit(self, request: IngestRequest, weight: int) -> bool:
        if self._stopping or not self._queue.put(request.org_id, request, weight):
            return False
        self._unanswered.append(request)
        self._writers.wake()
        return True

    def _refuse(self, outcome: Outcome, count: int) -> list[Outcome]:
        self.meters.count([outcome] * count)
        return [outcome] * count

    async def _sweep(self) -> None:
        """Answer requests that time out, and wake another writer if one hangs.

        One sweep serves all requests: a timer for each would cost a tenth of its CPU time.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            oldest_ns = monotonic_ns() - int(ANSWER_TIMEOUT_S * 1e9)
            self._unanswered = [request for request in self._unanswered if request.answer is not None]
            for request in self._unanswered:
                if request.since_ns < oldest_ns:
                    request.settle([Unavailable("the database takes too long")] * len(request.events), self.meters)
            if self._queue:
                self._writers.wake()
