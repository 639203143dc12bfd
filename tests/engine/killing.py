"""Kills engines: child processes that drive entries until SIGKILL ends them at a chosen round trip to Postgres."""

import asyncio
import contextlib
import itertools
import os
import signal
import traceback
import warnings
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from api.clock import from_us
from api.engine.claims import LEASE
from api.store.database import Database, DatabaseUnavailableError, Transaction, with_application_name
from tests.engine.conftest import EngineBench
from workbench.language.channel import RetryPolicy

KILLED_ENGINE = "killed engine"
MAX_KILLS = 8
_SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"


class Kill(msgspec.Struct, frozen=True):
    """When an engine is killed: before a round trip is sent, or once it is answered.

    An answered commit holds, but the engine has done nothing with it. A message has left before the next round trip.
    """

    round_trip: int
    answered: bool


# An engine claims entries in its second round trip and records its decisions in the ninth to thirteenth; each delivery
# takes about eight more. Hypothesis shrinks towards the first of these.
ROUND_TRIPS = (*range(9, 14), *range(2, 9), *range(14, 31))
KILLS = st.lists(
    st.sampled_from([Kill(round_trip, answered) for round_trip in ROUND_TRIPS for answered in (True, False)]),
    min_size=1,
    max_size=MAX_KILLS,
)
RETRIES = RetryPolicy((10.0,) * MAX_KILLS)  # so that no entry dies of its killed claims


class KilledClaim(msgspec.Struct, frozen=True):
    """A claim of a killed engine. It charged an attempt to the entry's next step, without an outcome."""

    entry_id: str
    step: int
    token: int


class Delay(NamedTuple):
    """The time in which no entry of a contact was decided, because an engine was killed. Both ends are included."""

    entry_id: str
    contact_id: str
    since: datetime
    until: datetime


class KilledEngines:
    """Engines that drive the entries of a bench, some of which are killed; the lease of their claims has to expire."""

    def __init__(self, bench: EngineBench, kills: Sequence[Kill]) -> None:
        bench.retries = RETRIES
        bench.driver = bench.new_driver()
        self._bench = bench
        self._kills = list(kills)
        self.killed = 0
        self.killed_claims: set[KilledClaim] = set()
        self.delays: list[Delay] = []

    async def next_due(self) -> timedelta:
        """Return at which time of the clock an entry is due or its lease expires; `timedelta.max`: never."""
        ((due_at,),) = await self._bench.fetch(
            "SELECT min(CASE state WHEN 'running' THEN lease_until ELSE due_at END) FROM entries"
            " WHERE state IN ('pending', 'running', 'waiting', 'retrying')"
        )
        return timedelta.max if due_at is None else due_at - from_us(0)

    async def drive(self, until: timedelta) -> None:
        """Rescue and drive due entries. No engine is killed whose lease would expire after `until`."""
        bench = self._bench
        if self.killed:
            await bench.driver.rescue(bench.org_id, 100)
        if self._kills and bench.clock.ahead < until - LEASE:
            self.killed += _drive_in_child(bench, self._kills.pop(0))
            # Postgres rolls back once it sees that the socket is closed.
            while await bench.fetch(_SESSIONS, f"%{KILLED_ENGINE}"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            claims = await bench.fetch(
                "SELECT id, step, lease_token, id::text, contact_id::text, lease_until FROM entries"
                " WHERE state = 'running'"
            )
            self.killed_claims |= {KilledClaim(*claim[:3]) for claim in claims}
            self.delays += [Delay(*claim[3:5], bench.clock.now(), claim[5]) for claim in claims]
        await bench.drive_once()

    def own_attempt(self, entry_id: str, step: int, token: int, attempt: int) -> int:
        """Return the number of an attempt, recorded under a claim with this token, without those of killed engines."""
        return attempt - sum(
            (claim.entry_id, claim.step) == (entry_id, step) and claim.token < token for claim in self.killed_claims
        )


def _drive_in_child(bench: EngineBench, kill: Kill) -> bool:
    """Drive entries in a child process; return whether it was killed before it had driven all that are due."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()  # Python 3.12 warns about other threads: those of `asyncio.to_thread`, which are idle
    if child == 0:
        try:
            asyncio.run(_drive_until(kill, bench))
            os._exit(0)
        except BaseException:  # noqa: BLE001  the parent's test must not continue in the child
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the child ended with {status}"
    return status != 0


async def _drive_until(kill: Kill, bench: EngineBench) -> None:
    round_trips, wait = itertools.count(1), Transaction.wait

    async def wait_or_die(self: Transaction, *args: Any, **options: Any) -> Any:
        is_last = next(round_trips) == kill.round_trip
        if is_last and not kill.answered:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await wait(self, *args, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    async with Database(with_application_name(bench.database.dsn, KILLED_ENGINE), size=1, hot=True) as database:
        while True:  # a busy machine takes longer to connect than a request would wait
            with contextlib.suppress(DatabaseUnavailableError):
                async with database.transaction():
                    break  # a new connection takes two round trips more
        Transaction.wait = wait_or_die  # type: ignore[method-assign]
        bench.database = database
        bench.driver = bench.new_driver()
        await bench.drive()
