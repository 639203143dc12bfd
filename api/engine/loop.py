"""The engine's loop: find due entries, drive them fairly, and sleep until there are more.

In each round every organization with due entries gets one turn, with a bounded batch of first attempts and a smaller
one of retries, so neither a flood nor a storm of retries in one organization delays the others. A notification wakes
the loop immediately. Without one it looks again when the next entry is due, and every two seconds in any case.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta

from api.clock import Clock, uuid7
from api.engine.drive import Driver
from api.store import entries as store
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.engines import Heartbeat, Listener, record_heartbeat, remove_engine
from api.store.entries import DueWork
from api.store.query import COMMIT, run

READY_BATCH = 200
RETRY_BATCH = 50
CONCURRENT_TURNS = 2
MAX_IDLE = timedelta(seconds=2)
SATURATED_IDLE = timedelta(milliseconds=50)
LOCKED_IDLE = timedelta(milliseconds=5)
STOP_TIMEOUT_S = 5.0  # for deliveries under way
HEARTBEAT_S = 5.0
RETRY_S = 1.0  # after an error

_log = logging.getLogger("workbench.engine")


class Engine:
    """One engine process. Any number of engines may work on one database."""

    def __init__(self, database: Database, driver: Driver, clock: Clock, listener: Listener) -> None:
        self._database = database
        self.driver = driver
        self._clock = clock
        self._listener = listener
        self._id = uuid7(clock.now_us())
        self._last_heartbeat: Heartbeat | None = None
        self._flooded: set[int] = set()  # organizations that filled a whole batch in their last turn
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the batches under way, then stop."""
        self._stopping.set()
        self._listener.wake()

    def lag_seconds(self) -> float:
        """Return how late the oldest due entry is, as of the last heartbeat."""
        return 0.0 if self._last_heartbeat is None else self._last_heartbeat.lag_seconds(self._clock.now())

    async def run(self) -> None:
        """Work until stopped. While the database is unreachable, the loop waits and tries again."""
        listening = asyncio.create_task(self._listener.listen())
        heartbeat = asyncio.create_task(self._send_heartbeats())
        while not self._stopping.is_set():
            try:
                if not await self._round():
                    await self._sleep_until_due()
            except TransactionConflictError:
                continue
            except DatabaseUnavailableError as error:
                _log.warning("database_unavailable", extra={"reason": str(error)})
                await self._pause(RETRY_S)
        await self.driver.deliveries.stop(STOP_TIMEOUT_S)
        for task in (listening, heartbeat):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(DatabaseUnavailableError):
            async with self._database.transaction() as tx:
                await remove_engine(tx, self._id, self._clock.now())

    async def _round(self) -> int:
        """Give every organization with due entries one turn; return how many entries were claimed or rescued."""
        async with self._database.transaction() as tx:
            due_work, _ = await run(tx, store.find_due_work(self._clock.now()), COMMIT)
        # A flooded organization gets a second turn, which runs concurrently with its first: claims skip locked rows.
        turns = iter([*due_work, *(work for work in due_work if work.org_id in self._flooded)])
        return sum(await asyncio.gather(*(self._take_turns(turns) for _ in range(CONCURRENT_TURNS))))

    async def _take_turns(self, turns: Iterator[DueWork]) -> int:
        entries = 0
        for work in turns:
            if self._stopping.is_set():
                break
            try:
                if work.expired:
                    entries += await self.driver.rescue(work.org_id, READY_BATCH)
                if work.ready:
                    claimed = await self.driver.drive(work.org_id, "ready", READY_BATCH)
                    (self._flooded.add if claimed == READY_BATCH else self._flooded.discard)(work.org_id)
                    entries += claimed
                if work.retrying or work.expired:  # rescued entries are retries
                    entries += await self.driver.drive(work.org_id, "retrying", RETRY_BATCH)
            except (DatabaseUnavailableError, TransactionConflictError):
                raise
            except Exception:  # noqa: BLE001  a bug that one organization triggers must not stop the others
                _log.exception("turn_failed", extra={"org_id": work.org_id})
                await self._pause(RETRY_S)
        return entries

    async def _sleep_until_due(self) -> None:
        async with self._database.transaction() as tx:
            due_at, _ = await run(tx, store.next_due(), COMMIT)
        # Due entries of a saturated organization, or of a contact that a transaction has locked, are not claimed, so
        # "until the next is due" would be a busy loop.
        shortest = SATURATED_IDLE if self.driver.deliveries.is_saturated else LOCKED_IDLE
        idle = MAX_IDLE if due_at is None else min(MAX_IDLE, max(due_at - self._clock.now(), shortest))
        await self._listener.wait(idle.total_seconds())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _send_heartbeats(self) -> None:
        while True:
            with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
                await self._database.calibrate(self._clock)
                async with self._database.transaction() as tx:
                    (due_at,) = await run(tx, store.next_due())
                    self._last_heartbeat = Heartbeat(self._clock.now(), due_at)
                    await record_heartbeat(tx, self._id, self._last_heartbeat.seen_at, due_at)
            await asyncio.sleep(HEARTBEAT_S)
