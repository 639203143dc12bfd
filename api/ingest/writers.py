"""The writers of one process: each takes what has gathered while it was busy with the batch before, and commits it.

A quiet service so answers at once, and a busy one writes large batches. When Postgres refuses an event, or one wakes a bug, its
batch is divided, by organization first and then in halves, until it fails alone; what is committed is answered at once. Who
holds a lock that a batch waits for stops only their own organization.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter

import msgspec

from api import tracing
from api.clock import Clock, from_us, monotonic_ns
from api.ingest.arrival import Arrival
from api.ingest.matching import Triggers
from api.ingest.meters import IngestMeters
from api.ingest.outcome import Outcome, Rejected, Stored, Unavailable
from api.ingest.queue import Queue
from api.ingest.transaction import store_batch
from api.ingest.writing import refusal_of
from api.store.database import ConflictError, Database, LockedError, RefusedDataError, UnavailableError

MOST_PER_BATCH = 512  # as the queue weighs
TRIES = 3
BUSY = 8
GATHER_SECONDS = 0.001
CROWD = 16  # requests; below that a second writer only makes two small batches of one
SLOW_NS = 20_000_000  # a batch that lasts longer may stand still: another writer goes past it
END_WITHIN = 3.0  # seconds; by then everybody has been answered

_log = logging.getLogger("workbench.ingest")

Answer = Callable[[list[Outcome]], None]
"""Takes the outcomes of a request's events, in order."""


class Request(msgspec.Struct, eq=False):
    """The valid events of one HTTP request, and where their outcomes go; `answer` None: nobody waits any more."""

    org_id: int
    arrivals: list[Arrival]
    answer: Answer | None
    since_ns: int

    def settle(self, outcomes: list[Outcome], meters: IngestMeters) -> None:
        """Answer and count, unless that has happened."""
        answer, self.answer = self.answer, None
        if answer is not None:
            meters.count(outcomes)
            meters.waits.note(monotonic_ns() - self.since_ns)
            answer(outcomes)


class Writers:
    """Some writers on one queue. `told` hears of every arrival that was not simply stored."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        triggers: Triggers,
        queue: Queue[Request],
        told: Callable[[Arrival, Outcome], None],
        meters: IngestMeters,
    ) -> None:
        self._database = database
        self._clock = clock
        self._triggers = triggers
        self._queue = queue
        self._told = told
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
        """Start writing."""
        self._tasks = [asyncio.create_task(self._write_until_stopped()) for _ in range(count)]

    def wake(self) -> None:
        """Say that there may be something to do."""
        self._woken.set()

    async def stop(self) -> None:
        """Write what is waiting, then stop; what stands still is left, and was answered long ago."""
        self._stopping = True
        self.wake()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_WITHIN)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_until_stopped(self) -> None:
        while True:
            if self._queue and self._has_room():
                taken = await self._take_and_write()
                if taken >= BUSY:
                    await asyncio.sleep(GATHER_SECONDS)
            elif self._stopping and not self._queue:
                self.wake()  # for a writer that waits for this one
                return
            else:
                self._woken.clear()
                await self._woken.wait()

    def _has_room(self) -> bool:
        busy = self._busy_since_ns
        return not busy or len(self._queue) >= CROWD or monotonic_ns() - busy[0] > SLOW_NS

    async def _take_and_write(self) -> int:
        requests = [each for each in self._queue.take(MOST_PER_BATCH) if each.answer is not None]
        since_ns = monotonic_ns()
        self._busy_since_ns.append(since_ns)
        try:
            if requests:
                await self._write(requests)
                tracing.record("store_batch", since_ns, {"requests": len(requests)})
        except Exception:  # noqa: BLE001  the edge of a writer: one batch must not end it
            _log.exception("writer_failed", extra={"requests": len(requests)})
        finally:
            self._busy_since_ns.remove(since_ns)
        return len(requests)

    async def _write(self, requests: list[Request]) -> None:
        """Write requests and answer them; when they cannot be written together, divide them."""
        counts = [len(request.arrivals) for request in requests]
        outcomes = await self._commit([arrival for request in requests for arrival in request.arrivals], requests)
        if outcomes is not None:
            self._answer(requests, counts, outcomes)
        elif len(requests) > 1:
            for part in _parts(requests):
                await self._write(part)
        else:
            self._answer(requests, counts, await self._divide(requests[0].arrivals, requests))

    async def _divide(self, arrivals: list[Arrival], requests: list[Request]) -> list[Outcome]:
        """Write the halves of one request's events, each on its own, until what breaks stands alone."""
        middle = len(arrivals) // 2
        outcomes: list[Outcome] = []
        for half in (arrivals[:middle], arrivals[middle:]):
            outcomes += await self._commit(half, requests) or await self._divide(half, requests)
        return outcomes

    def _answer(self, requests: list[Request], counts: list[int], outcomes: list[Outcome]) -> None:
        end = 0
        for request, count in zip(requests, counts, strict=True):
            start, end = end, end + count
            own = outcomes[start:end]
            for arrival, outcome in zip(request.arrivals, own, strict=True):
                if type(outcome) is not Stored:
                    self._told(arrival, outcome)
            try:
                request.settle(own, self._meters)
            except Exception:  # noqa: BLE001  one caller's answer must not cost the others theirs
                _log.exception("answer_failed")

    async def _commit(self, arrivals: list[Arrival], requests: list[Request]) -> list[Outcome] | None:
        """Return the outcomes of arrivals written in one transaction; None when they are to be divided first."""
        failure: Outcome
        try:
            return await self._try_to_commit(arrivals, requests)
        except UnavailableError as error:
            _log.warning("batch_unavailable", extra={"events": len(arrivals), "reason": str(error)})
            return [Unavailable(str(error))] * len(arrivals)
        except ConflictError as error:
            alone = len({arrival.org_id for arrival in arrivals}) == 1
            return [Unavailable(str(error))] * len(arrivals) if alone else None
        except RefusedDataError as error:
            _log.warning("refused_by_database", extra={"events": len(arrivals), "reason": str(error)})
            failure = Rejected(refusal_of(error))
        except Exception as error:  # noqa: BLE001  a bug must not leave requests unanswered
            _log.exception("write_failed", extra={"events": len(arrivals)})
            failure = Unavailable(type(error).__name__)
        return [failure] if len(arrivals) == 1 else None

    async def _try_to_commit(self, arrivals: list[Arrival], requests: list[Request]) -> list[Outcome]:
        """Write arrivals, again after a conflict as long as somebody waits. After a lock there is no time left for that."""
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                async with self._database.transaction() as tx:
                    return await store_batch(tx, arrivals, self._triggers, from_us(self._clock.now_us()))
            except ConflictError as error:
                nobody_waits = all(request.answer is None for request in requests)
                if isinstance(error, LockedError) or nobody_waits or not tries_left:
                    raise


def _parts(requests: list[Request]) -> Iterable[list[Request]]:
    """Return requests of one organization each, or the halves of those of a single one."""
    by_org = [list(group) for _, group in groupby(sorted(requests, key=attrgetter("org_id")), attrgetter("org_id"))]
    if len(by_org) > 1:
        return by_org
    middle = len(requests) // 2
    return (requests[:middle], requests[middle:])
