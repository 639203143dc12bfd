"""Live ingest in one API process: requests are parsed, queued, written in batches, and answered after their commit.

An event takes these steps: parse, queue (`Pipeline`), and then in one transaction (`store.store_batch`): claim keys,
resolve contacts, match, write, commit.

The queue is bounded in events and in bytes; a request that does not fit is refused at once. If Postgres is down or
hangs, every request is answered within ANSWER_TIMEOUT_S. A request that timed out is dropped from the queue, unless a
writer has taken it: then its events may be stored, and a retry with the same keys gets the result.

Each writer takes the requests that gathered while it was busy with its last batch, and commits them as one batch
(`BatchWriters`). So a quiet service answers at once, and a busy one writes large batches. If Postgres refuses an event,
or an event triggers a bug, the batch is divided, first by organization and then in halves, until the event fails alone;
parts that commit are answered at once. A batch that waits for a lock delays only the organizations that it contains.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from api import process
from api.clock import Clock, from_us, monotonic_ns, token
from api.crypto import Keyring
from api.ingest.match import Triggers
from api.ingest.parse import AcceptedEvent, EventReader, Outcome, ParsedEvent, RateLimited, Rejected, Unavailable
from api.ingest.queue import Queue, TokenBuckets
from api.ingest.rejected import Notices
from api.ingest.store import CANNOT_BE_STORED, store_batch
from api.process import Spans, Tally
from api.store.database import (
    Database,
    DatabaseUnavailableError,
    LockedError,
    RefusedDataError,
    TransactionConflictError,
)
from api.store.events import ATTRIBUTES_TOO_LARGE
from workbench.language.problem import Problems

QUEUE_CAPACITY = 8_192  # events: about one second of work
BYTES_PER_WEIGHT = 4_096  # a larger event counts for several
YIELD_AFTER_NS = 2_000_000  # of parsing, before other requests of this process get their turn
ANSWER_TIMEOUT_S = 1.8  # docs/contract.md promises a response within two seconds
SWEEP_INTERVAL_S = 0.1

MAX_BATCH_WEIGHT = 512  # in the unit of the queue: one event of ordinary size
MAX_ATTEMPTS = 3
BUSY_REQUESTS = 8  # after a batch of at least this size, GATHER_S makes the next batch larger
GATHER_S = 0.001
CROWDED_REQUESTS = 16  # with fewer waiting, a second writer would only split one batch in two
STALLED_NS = 20_000_000  # a batch that takes longer may wait for a lock, so another writer starts
STOP_TIMEOUT_S = 3.0  # longer than the pipeline's answer timeout: all requests have been answered by then

QUEUE_FULL: Outcome = Unavailable("too many events are waiting, or the service stops")
_ORG_ID = attrgetter("org_id")

_log = logging.getLogger("workbench.ingest")

Answer = Callable[[list[Outcome]], None]  # takes the outcomes of the events of a request, in order


class IngestMeters:
    """Counts of one process. Rejected events are missing here: `Notices` counts them by field."""

    def __init__(self) -> None:
        self.events = Tally("outcome")
        self.waits = Spans()

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes when they are answered."""
        for outcome in outcomes:
            if type(outcome) is not Rejected:
                self.events.add(str(outcome.__struct_config__.tag))


class IngestRequest(msgspec.Struct, eq=False):
    """The valid events of one HTTP request. `answer`: None after it was answered or abandoned."""

    org_id: int
    key_id: str | None
    events: list[ParsedEvent]
    answer: Answer | None
    since_ns: int

    def settle(self, outcomes: list[Outcome], meters: IngestMeters) -> None:
        """Answer the request and count its outcomes, unless that was done before."""
        answer, self.answer = self.answer, None
        if answer is not None:
            meters.count(outcomes)
            meters.waits.note(monotonic_ns() - self.since_ns)
            answer(outcomes)


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
        self.buckets = buckets
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
        self,
        org_id: int,
        raws: list[bytes],
        test_key: bool,
        since_ns: int | None = None,
        request_id: str | None = None,
        *,
        key_id: str | None = None,
        strict: bool = False,
        limited: bool = True,
    ) -> list[Outcome]:
        """Return the outcome of each event of a request, in order, after its commit or refusal.

        `since_ns`: when the request arrived, on the monotonic clock; its timeout counts from there. `key_id`: the key
        under which misspelt fields are counted. `strict`: unknown fields are not valid. `limited`: the rate limit
        of the organization applies.
        """
        granted = self.buckets.take(org_id, len(raws), monotonic_ns()) if limited else len(raws)
        over_rate = len(raws) - granted
        if not self._queue.fits(org_id, granted):  # parsing first would cost more than the refusal
            return self._refuse(QUEUE_FULL, granted) + self._refuse(RateLimited(), over_rate)
        parsed: list[ParsedEvent | Problems] = []
        org_keys = self._keyring.of(org_id)
        turn_ns = monotonic_ns()
        for raw in raws[:granted]:
            event = self._reader.read(org_id, org_keys, raw, test_key, request_id, strict=strict)
            parsed.append(event)
            if not isinstance(event, ParsedEvent):
                self._notices.note_rejected(org_id, raw, event)
            # Not by size: comparing an unknown field with the names of ours takes longer than parsing a large event.
            if monotonic_ns() - turn_ns > YIELD_AFTER_NS:
                await asyncio.sleep(0)
                turn_ns = monotonic_ns()
        stored: list[Outcome] = []
        if events := [event for event in parsed if isinstance(event, ParsedEvent)]:
            answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

            def answer(outcomes: list[Outcome]) -> None:
                if not answered.done():  # done: the client has gone and the task was cancelled
                    answered.set_result(outcomes)

            request = IngestRequest(org_id, key_id, events, answer, since_ns or monotonic_ns())
            if self._submit(request, sum(1 + len(raw) // BYTES_PER_WEIGHT for raw in raws)):
                try:
                    stored = await answered
                finally:
                    request.answer = None
            else:
                stored = self._refuse(QUEUE_FULL, len(events))
        by_event = iter(stored)
        outcomes: list[Outcome] = [
            next(by_event) if isinstance(event, ParsedEvent) else Rejected(event) for event in parsed
        ]
        return outcomes + self._refuse(RateLimited(), over_rate)

    def accept(
        self,
        org_id: int,
        raw: bytes,
        test_key: bool,
        since_ns: int,
        answer: Answer,
        request_id: str | None = None,
        *,
        key_id: str,
        strict: bool,
    ) -> bool:
        """Queue one event and pass its outcome to `answer` later; the fast path of `ingest`.

        Returns False, without side effects, if the event is not valid, over the rate or does not fit; `ingest` then
        reports it.
        """
        if self._stopping or not self._queue.fits(org_id, 1):
            return False
        event = self._reader.read(org_id, self._keyring.of(org_id), raw, test_key, request_id, strict=strict)
        if not isinstance(event, ParsedEvent) or not self.buckets.take(org_id, 1, since_ns):
            return False
        request = IngestRequest(org_id, key_id, [event], answer, since_ns)
        return self._submit(request, 1 + len(raw) // BYTES_PER_WEIGHT)

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


class BatchWriters:
    """Writer tasks on one queue. `on_outcome` is called for every event that was not simply stored, or has warnings."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        triggers: Triggers,
        queue: Queue[IngestRequest],
        on_outcome: Callable[[ParsedEvent, Outcome, str | None], None],
        meters: IngestMeters,
    ) -> None:
        self._database = database
        self._clock = clock
        self._triggers = triggers
        self._queue = queue
        self._on_outcome = on_outcome
        self._meters = meters
        self._woken = asyncio.Event()
        self._stopping = False
        self._busy_since_ns: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def alive(self) -> bool:
        """Whether every writer runs."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def start(self, count: int) -> None:
        self._tasks = [asyncio.create_task(self._write_until_stopped()) for _ in range(count)]

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """Write what is queued, then stop. A batch that hangs is cancelled, after its requests have timed out."""
        self._stopping = True
        self.wake()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_until_stopped(self) -> None:
        busy = self._busy_since_ns
        while True:
            if self._queue and (
                not busy or len(self._queue) >= CROWDED_REQUESTS or monotonic_ns() - busy[0] > STALLED_NS
            ):
                written = await self._write_next_batch()
                if written >= BUSY_REQUESTS:
                    await asyncio.sleep(GATHER_S)
            elif self._stopping and not self._queue:
                self.wake()  # another writer may wait for this one
                return
            else:
                self._woken.clear()
                await self._woken.wait()

    async def _write_next_batch(self) -> int:
        requests = [request for request in self._queue.take(MAX_BATCH_WEIGHT) if request.answer is not None]
        since_ns = monotonic_ns()
        self._busy_since_ns.append(since_ns)
        try:
            if requests:
                await self._write(requests)
                process.record("store_batch", since_ns, {"requests": len(requests)})
        except Exception:  # noqa: BLE001  one batch must not end its writer
            _log.exception("writer_failed", extra={"requests": len(requests)})
        finally:
            self._busy_since_ns.remove(since_ns)
        return len(requests)

    async def _write(self, requests: list[IngestRequest]) -> None:
        """Write requests and answer them; divide them if they cannot be written together."""
        outcomes = await self._commit([event for request in requests for event in request.events], requests)
        if outcomes is not None:
            self._answer(requests, outcomes)
        elif len(requests) > 1:
            # Divide by organization first, so that an organization never waits for the halving of another one's events.
            by_org = [list(own) for _, own in groupby(sorted(requests, key=_ORG_ID), _ORG_ID)]
            middle = len(requests) // 2
            for part in by_org if len(by_org) > 1 else (requests[:middle], requests[middle:]):
                await self._write(part)
        else:
            self._answer(requests, await self._write_halves(requests[0].events, requests))

    async def _write_halves(self, events: list[ParsedEvent], requests: list[IngestRequest]) -> list[Outcome]:
        """Write the halves of one request's events, each in its own transaction, down to a single event."""
        middle = len(events) // 2
        outcomes: list[Outcome] = []
        for half in (events[:middle], events[middle:]):
            outcomes += await self._commit(half, requests) or await self._write_halves(half, requests)
        return outcomes

    def _answer(self, requests: list[IngestRequest], outcomes: list[Outcome]) -> None:
        end = 0
        for request in requests:
            start, end = end, end + len(request.events)
            own = outcomes[start:end]
            for event, outcome in zip(request.events, own, strict=True):
                if type(outcome) is not AcceptedEvent or event.body.warnings:
                    self._on_outcome(event, outcome, request.key_id)
            try:
                request.settle(own, self._meters)
            except Exception:  # noqa: BLE001  a failing callback must not leave the other requests unanswered
                _log.exception("answer_failed")

    async def _commit(
        self, events: list[ParsedEvent], requests: list[IngestRequest], *, fit: bool = False
    ) -> list[Outcome] | None:
        """Return the outcomes of events written in one transaction, or None if they have to be divided first.

        After a conflict the transaction is repeated while a request waits for the answer. `fit`: attributes for which
        a contact has no room are left out.
        """
        failure: Outcome
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            try:
                async with self._database.transaction() as tx:
                    return await store_batch(tx, events, self._triggers, from_us(self._clock.now_us()), fit=fit)
            except DatabaseUnavailableError as error:
                _log.warning("batch_unavailable", extra={"events": len(events), "reason": str(error)})
                return [Unavailable(str(error))] * len(events)
            except TransactionConflictError as error:
                is_awaited = any(request.answer is not None for request in requests)
                # A lock timeout has used up the time for another attempt.
                if attempts_left and is_awaited and not isinstance(error, LockedError):
                    continue
                # Events of other organizations need not wait for the same lock.
                one_org = len({event.org_id for event in events}) == 1
                return [Unavailable(str(error))] * len(events) if one_org else None
            except RefusedDataError as error:
                if str(error) == ATTRIBUTES_TOO_LARGE and not fit:
                    return await self._commit(events, requests, fit=True)
                _log.warning("rejected_by_database", extra={"events": len(events), "reason": str(error)})
                failure = Rejected(CANNOT_BE_STORED)
            except Exception as error:  # noqa: BLE001  a bug must not leave requests unanswered
                _log.exception("write_failed", extra={"events": len(events)})
                failure = Unavailable(type(error).__name__)
            return [failure] if len(events) == 1 else None
        raise AssertionError("the loop above returns")
