"""The engine's loop: look for due work, drive it fairly, wait to be woken.

Organizations take turns, a bounded batch each, first tries before retries, so neither a flood nor a storm of retries of
one holds up the others. A notification wakes the loop at once; without one it looks again when the next entry is due,
and in any case every few seconds.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta

from api.clock import Clock, uuid7
from api.engine.drive import Driver
from api.store import engine as store
from api.store.calls import COMMIT, run
from api.store.database import ConflictError, Database, UnavailableError
from api.store.engine import Due
from api.store.health import Beat, beat, leave
from api.store.wake import Listener

READY_BATCH = 200
RETRY_BATCH = 50
IDLE = timedelta(seconds=2)
CROWDED = timedelta(milliseconds=50)
GRACE = 5.0  # seconds for deliveries under way when the engine stops
BEAT_EVERY = 5.0
AWAY_PAUSE = 1.0
WORKERS = 2

_log = logging.getLogger("workbench.engine")


class Engine:
    """One engine process. Any number may work on one database."""

    def __init__(self, database: Database, driver: Driver, clock: Clock, listener: Listener) -> None:
        self._database = database
        self.driver = driver
        self._clock = clock
        self._listener = listener
        self._id = uuid7(clock.now_us())
        self._last_beat: Beat | None = None
        self._flooded: set[int] = (
            set()
        )  # organizations with more than a batch: they get two turns, one beside the other
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the batches in hand, then stop."""
        self._stopping.set()
        self._listener.wake()

    def lag_seconds(self) -> float:
        """Return how late the oldest due entry is, as far as this engine has seen."""
        return 0.0 if self._last_beat is None else self._last_beat.lag_seconds(self._clock.now())

    async def run(self) -> None:
        """Work until stopped; survives a database that goes away."""
        listening = asyncio.create_task(self._listener.listen())
        beating = asyncio.create_task(self._beat())
        while not self._stopping.is_set():
            try:
                if not await self._round():
                    await self._rest()
            except ConflictError:
                continue
            except UnavailableError as error:
                _log.warning("database_away", extra={"reason": str(error)})
                await self._pause(AWAY_PAUSE)
        await self.driver.stop(GRACE)
        for task in (listening, beating):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(UnavailableError):
            async with self._database.transaction() as tx:
                await leave(tx, self._id, self._clock.now())

    async def _round(self) -> int:
        """Give every organization with work one turn; return how many entries were touched."""
        async with self._database.transaction() as tx:
            waiting, _ = await run(tx, store.due_organizations(self._clock.now()), COMMIT)
        done = 0
        turns = iter([*waiting, *(due for due in waiting if due.org_id in self._flooded)])
        for counts in await asyncio.gather(*(self._take_turns(turns) for _ in range(WORKERS))):
            done += counts
        return done

    async def _take_turns(self, turns: Iterator[Due]) -> int:
        done = 0
        for due in turns:
            if self._stopping.is_set():
                break
            try:
                done += await self._turn(due)
            except (UnavailableError, ConflictError):
                raise
            except Exception:  # noqa: BLE001  the edge of one organization's turn: a bug it wakes must not stop the others
                _log.exception("turn_failed", extra={"org_id": due.org_id})
                await self._pause(AWAY_PAUSE)
        return done

    async def _turn(self, due: Due) -> int:
        done = 0
        if due.expired:
            done += await self.driver.rescue(due.org_id, READY_BATCH)
        if due.ready:
            done += await self._drive_ready(due.org_id)
        if due.retrying or due.expired:
            done += await self.driver.drive(due.org_id, "retrying", RETRY_BATCH)
        return done

    async def _drive_ready(self, org_id: int) -> int:
        taken = await self.driver.drive(org_id, "ready", READY_BATCH)
        if taken == READY_BATCH:
            self._flooded.add(org_id)
        else:
            self._flooded.discard(org_id)
        return taken

    async def _rest(self) -> None:
        async with self._database.transaction() as tx:
            due_at, _ = await run(tx, store.next_due(), COMMIT)
        soonest = CROWDED if self.driver.is_crowded else timedelta()
        left = IDLE if due_at is None else min(IDLE, max(due_at - self._clock.now(), soonest))
        await self._listener.wait(left.total_seconds())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(UnavailableError, ConflictError):
                await self._database.calibrate(self._clock)
                async with self._database.transaction() as tx:
                    (due_at,) = await run(tx, store.next_due())
                    self._last_beat = Beat(self._clock.now(), due_at)
                    await beat(tx, self._id, self._last_beat.seen_at, due_at)
            await asyncio.sleep(BEAT_EVERY)
