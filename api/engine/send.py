"""Deliveries under way: each sends one message outside any transaction, records what came of it, and goes on with its entry.

They run beside the loop, so that a receiver that hangs holds up nobody. Their leases are kept meanwhile, and nothing begins to
leave once a lease may be somebody else's.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from api import tracing
from api.clock import Clock, monotonic_ns
from api.engine.account import Account
from api.engine.graphs import Graphs
from api.engine.leases import Leases
from api.engine.outbox import Parcel, address_digests
from api.engine.outside import Ended, Transports, attempt, judged
from api.engine.perform import Progress, progress
from api.engine.record import Lost, record_sent
from api.keyring import Keyring
from api.language.run import State
from api.store.database import ConflictError, Database, UnavailableError
from api.store.delivery import close_endpoint
from api.store.engine import Claim
from api.store.outbox import Settled, settle_outgoing

MOST_UNDER_WAY = 256  # deliveries of one organization in one engine
AWAY_PAUSE = 0.5

_log = logging.getLogger("workbench.engine")

GoOn = Callable[[int, Claim], Awaitable[None]]
"""Takes an entry further whose message has left."""


class Sending(msgspec.Struct, frozen=True):
    """What deliveries work with."""

    database: Database
    keyring: Keyring
    clock: Clock
    ways: Transports
    leases: Leases
    graphs: Graphs
    account: Account


class Deliveries:
    """The deliveries of one engine."""

    def __init__(self, sending: Sending, go_on: GoOn) -> None:
        self._with = sending
        self._go_on = go_on
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def room(self, org_id: int) -> int:
        """Return how many more entries of an organization may be taken on."""
        return max(MOST_UNDER_WAY - len(self._tasks.get(org_id, ())), 0)

    @property
    def is_crowded(self) -> bool:
        """Whether an organization has no room: then due entries of it lie where they are."""
        return any(len(tasks) >= MOST_UNDER_WAY for tasks in self._tasks.values())

    def begin(self, org_id: int, parcels: Sequence[Parcel]) -> None:
        """Send, each in its own time."""
        for parcel in parcels:
            task = asyncio.create_task(self._deliver(org_id, parcel))
            self._tasks.setdefault(org_id, set()).add(task)
            task.add_done_callback(lambda done: self._forget(org_id, done))

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.gather(*(task for tasks in list(self._tasks.values()) for task in tasks))

    async def stop(self, grace: float) -> None:
        """Wait so many seconds, then break off: what is cut short is sent again, under its id, when its lease has expired."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.finish()

    def _forget(self, org_id: int, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[org_id]
        tasks.discard(task)
        if not tasks:
            del self._tasks[org_id]

    async def _deliver(self, org_id: int, parcel: Parcel) -> None:
        entry_id = parcel.progress.claim.entry_id
        following = None
        try:
            following = await self._through(org_id, parcel)
            if following is not None:
                await self._go_on(org_id, following)
        except (UnavailableError, ConflictError) as error:
            _log.warning("delivery_not_recorded", extra={"entry_id": entry_id, "reason": str(error)})
        except Exception:  # noqa: BLE001  the edge of one delivery: a bug it wakes must not stop the others
            _log.exception("delivery_failed", extra={"entry_id": entry_id})
        finally:
            if following is None:
                self._with.leases.release(org_id, [parcel.progress.claim])

    async def _through(self, org_id: int, parcel: Parcel) -> Claim | None:
        """Send and record; return the entry as it goes on at once, None when it does not."""
        claim = parcel.progress.claim
        if not self._with.leases.is_ours(org_id, claim):
            _log.warning("lease_lost", extra={"org_id": org_id, "entries": 1})
            return None
        since_ns = monotonic_ns()
        ended = await attempt(
            self._with.ways,
            self._with.keyring,
            org_id,
            parcel,
            self._with.clock.now(),
            lambda: self._with.leases.is_ours(org_id, claim),
        )
        after = await self._recorded(org_id, parcel, ended)
        sent = {"request_id": claim.request_id, "entry_id": claim.entry_id, "node_id": parcel.pending.effect.node_id}
        tracing.record("deliver", since_ns, sent | {"outcome": type(ended).__name__.lower()})
        if after is None or after.run.state is not State.RUNNING:
            return None
        stand = after.run
        return msgspec.structs.replace(
            claim, node_id=stand.node_id, step=stand.step, attempt=stand.attempt, since=stand.since
        )

    async def _recorded(self, org_id: int, parcel: Parcel, ended: Ended) -> Progress | None:
        """Write what came of it, as long as it is ours to write; return where the entry stands."""
        claim, now = parcel.progress.claim, self._with.clock.now()
        graph = self._with.graphs.of(org_id, claim)
        assert graph is not None, "it sent something"
        decision, settled = judged(parcel, graph, ended, now)
        after = progress(claim, parcel.progress.run, graph, [decision], None)
        while True:
            try:
                written = await self._write(org_id, parcel, after, settled, now)
                if written is not None:
                    self._with.account.note(org_id, [written])
                return written
            except (UnavailableError, ConflictError):
                if not self._with.leases.is_ours(org_id, claim):
                    raise
                await asyncio.sleep(AWAY_PAUSE)

    async def _write(
        self, org_id: int, parcel: Parcel, after: Progress, settled: Settled | None, at: datetime
    ) -> Progress | None:
        claim, stored = parcel.progress.claim, parcel.stored
        settling = []
        if stored is not None and settled is not None:
            settling.append(settle_outgoing(org_id, stored.id, claim.token, settled, at))
        async with self._with.database.transaction() as tx:
            recorded = await record_sent(tx, org_id, after, settling, at)
            if isinstance(recorded, Lost):
                self._with.account.lost += 1
                _log.warning("lease_lost", extra={"org_id": org_id, "entries": 1})
                return None
            if stored is not None and after.run.outcome == "gone":
                digests = address_digests(self._with.keyring, org_id, stored)
                await close_endpoint(tx, org_id, digests, urlsplit(stored.recipient).hostname or "", at)
        return recorded
