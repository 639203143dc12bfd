"""Writers: each takes the requests that gathered while it was busy with its last batch, and commits them as one batch.

So a quiet service answers at once, and a busy one writes large batches. If Postgres refuses an event, or an event
triggers a bug, the batch is divided, first by organization and then in halves, until the event fails alone; parts that
commit are answered at once. A batch that waits for a lock delays only the organizations that it contains.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from api import process
from api.clock import Clock, from_us, monotonic_ns
from api.ingest.match import Triggers
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, Outcome, ParsedEvent, RateLimited, Rejected, Unavailable
from api.ingest.queue import Queue
from api.ingest.store import refusal_of, store_batch
from api.process import Spans, Tally
from api.store.database import (
    Database,
    DatabaseUnavailableError,
    LockedError,
    RefusedDataError,
    TransactionConflictError,
)

MAX_BATCH_WEIGHT = 512  # in the unit of the queue: one event of ordinary size
MAX_ATTEMPTS = 3
BUSY_REQUESTS = 8  # after a batch of at least this size, GATHER_S makes the next batch larger
GATHER_S = 0.001
CROWDED_REQUESTS = 16  # with fewer waiting, a second writer would only split one batch in two
STALLED_NS = 20_000_000  # a batch that takes longer may wait for a lock, so another writer starts
STOP_TIMEOUT_S = 3.0  # longer than the pipeline's answer timeout: all requests have been answered by then

_ORG_ID = attrgetter("org_id")

_log = logging.getLogger("workbench.ingest")

_OUTCOME_LABELS: dict[type[Outcome], str] = {
    AcceptedEvent: "stored",
    Duplicate: "duplicate",
    DryRun: "dry_run",
    RateLimited: "rate_limited",
    Unavailable: "unavailable",
}

Answer = Callable[[list[Outcome]], None]  # takes the outcomes of the events of a request, in order


class IngestMeters:
    """Counts of one process. Rejected events are missing here: `Notices` counts them by field."""

    def __init__(self) -> None:
        self.events = Tally("outcome")
        self.waits = Spans()

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes when they are answered."""
        for outcome in outcomes:
            if (label := _OUTCOME_LABELS.get(type(outcome))) is not None:
                self.events.add(label)


class IngestRequest(msgspec.Struct, eq=False):
    """The valid events of one HTTP request. `answer`: None after it was answered or abandoned."""

    org_id: int
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


class BatchWriters:
    """Writer tasks on one queue. `on_outcome` is called for every event that was not simply stored."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        triggers: Triggers,
        queue: Queue[IngestRequest],
        on_outcome: Callable[[ParsedEvent, Outcome], None],
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
                if type(outcome) is not AcceptedEvent:
                    self._on_outcome(event, outcome)
            try:
                request.settle(own, self._meters)
            except Exception:  # noqa: BLE001  a failing callback must not leave the other requests unanswered
                _log.exception("answer_failed")

    async def _commit(self, events: list[ParsedEvent], requests: list[IngestRequest]) -> list[Outcome] | None:
        """Return the outcomes of events written in one transaction, or None if they have to be divided first."""
        failure: Outcome
        try:
            return await self._commit_with_retries(events, requests)
        except DatabaseUnavailableError as error:
            _log.warning("batch_unavailable", extra={"events": len(events), "reason": str(error)})
            return [Unavailable(str(error))] * len(events)
        except TransactionConflictError as error:
            # Events of other organizations need not wait for the same lock.
            one_org = len({event.org_id for event in events}) == 1
            return [Unavailable(str(error))] * len(events) if one_org else None
        except RefusedDataError as error:
            _log.warning("rejected_by_database", extra={"events": len(events), "reason": str(error)})
            failure = Rejected(refusal_of(error))
        except Exception as error:  # noqa: BLE001  a bug must not leave requests unanswered
            _log.exception("write_failed", extra={"events": len(events)})
            failure = Unavailable(type(error).__name__)
        return [failure] if len(events) == 1 else None

    async def _commit_with_retries(self, events: list[ParsedEvent], requests: list[IngestRequest]) -> list[Outcome]:
        """Write events in one transaction; repeat it after a conflict while a request waits for the answer."""
        attempts_left = MAX_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                async with self._database.transaction() as tx:
                    return await store_batch(tx, events, self._triggers, from_us(self._clock.now_us()))
            except TransactionConflictError as error:
                abandoned = all(request.answer is None for request in requests)
                # A lock timeout has used up the time for another attempt.
                if isinstance(error, LockedError) or abandoned or not attempts_left:
                    raise
