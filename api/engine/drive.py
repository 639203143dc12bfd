"""One batch of one organization, driven: claim, look, advance, record.

The first transaction charges the attempts and takes the leases. What decisions look at is read in a second, and a third writes
what the language decided, fenced by the leases' tokens: a worker that lost its lease writes nothing.
"""

import asyncio
import logging
from collections.abc import Collection
from datetime import datetime
from typing import Literal

import msgspec

from api.clock import Clock
from api.engine.account import Account
from api.engine.facts import Seen, asked_of, look, run_of
from api.engine.graphs import Graphs
from api.engine.leases import LEASE, Leases
from api.engine.outside import Transports
from api.engine.perform import Progress, broken
from api.engine.record import CalledOff, Lost, Recorded, Stale, Written, record
from api.engine.send import Deliveries, Sending
from api.engine.walk import advance_some
from api.keyring import Keyring
from api.language.retry import RetryPolicy
from api.store import engine as store
from api.store.calls import COMMIT, run
from api.store.database import Database, RefusedDataError
from api.store.engine import Claim

Lane = Literal["ready", "retrying"]

_log = logging.getLogger("workbench.engine")


class Driver:
    """Drives batches."""

    def __init__(
        self, database: Database, keyring: Keyring, clock: Clock, retries: RetryPolicy, ways: Transports
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._retries = retries
        self._graphs = Graphs(database)
        self._leases = Leases(database, clock)
        self.account = Account()
        sending = Sending(database, keyring, clock, ways, self._leases, self._graphs, self.account)
        self._deliveries = Deliveries(sending, lambda org_id, claim: self._finish(org_id, [claim]))

    @property
    def under_way(self) -> int:
        """How many deliveries are under way."""
        return len(self._deliveries)

    @property
    def is_crowded(self) -> bool:
        """Whether due entries lie where they are, because deliveries of their organization take long."""
        return self._deliveries.is_crowded

    async def finish_deliveries(self) -> None:
        """Wait until nothing is on its way out."""
        await self._deliveries.finish()

    async def stop(self, grace: float) -> None:
        """Wait so many seconds for what is on its way out, then break it off."""
        await self._deliveries.stop(grace)

    async def drive(self, org_id: int, lane: Lane, most: int) -> int:
        """Take up to `most` due entries of a lane as far as they go; return how many were claimed.

        One that sends something outside goes on later, when it has left.
        """
        now, room = self._clock.now(), self._deliveries.room(org_id)
        claims = await self._claim(org_id, lane, now, min(most, room)) if room else []
        if claims:
            await self._finish(org_id, claims)
        return len(claims)

    async def rescue(self, org_id: int, most: int) -> int:
        """Give back entries whose worker stopped in the middle; return how many."""
        async with self._database.transaction() as tx:
            rescued, _ = await run(tx, store.rescue(org_id, self._clock.now(), most), COMMIT)
        if rescued:
            self.account.rescued += rescued
            _log.warning("lease_expired", extra={"org_id": org_id, "entries": rescued})
        return rescued

    async def _claim(self, org_id: int, lane: Lane, now: datetime, most: int) -> list[Claim]:
        take = store.claim_ready if lane == "ready" else store.claim_retrying
        async with self._database.transaction() as tx:
            claims, _ = await run(tx, take(org_id, now, now + LEASE, most), COMMIT)
        return claims

    async def _finish(self, org_id: int, claims: list[Claim]) -> None:
        """Take claimed entries as far as they go, keeping their leases meanwhile."""
        rest = {claim.entry_id: claim for claim in claims}
        self._leases.hold(org_id, claims)
        try:
            await self._graphs.learn(org_id, claims)
            await self._work_off(org_id, rest)
        finally:
            self._leases.release(org_id, rest.values())

    async def _work_off(self, org_id: int, rest: dict[str, Claim]) -> None:
        """Decide and record slice by slice, each on facts of its own.

        When one entry breaks a slice, those of the slice are taken alone, so that only the poisoned one dies.
        """
        alone = 0
        while rest:
            claims = list(rest.values())[: 1 if alone else None]
            seen = await self._look(org_id, claims)
            done = await asyncio.to_thread(advance_some, org_id, claims, self._graphs, seen)
            recorded = await self._record(org_id, done, seen)
            match recorded:
                case None:
                    alone = len(done)
                case Written(parcels):
                    alone = max(alone - 1, 0)
                    self.account.note(org_id, done)
                    self._leave(org_id, done, rest)
                    self._deliveries.begin(org_id, parcels)
                case Stale():
                    pass  # decide again, on what is so now
                case CalledOff(outcomes):
                    rest |= {
                        each: msgspec.structs.replace(rest[each], called_off=why) for each, why in outcomes.items()
                    }
                case Lost(entry_ids):
                    self.account.lost += len(entry_ids)
                    _log.warning("lease_lost", extra={"org_id": org_id, "entries": len(entry_ids)})
                    self._forget(org_id, entry_ids, rest)

    def _leave(self, org_id: int, done: list[Progress], rest: dict[str, Claim]) -> None:
        """Let go of what is recorded; who waits for a delivery keeps its lease."""
        for each in done:
            if each.pending is not None:
                del rest[each.claim.entry_id]
        self._forget(org_id, [each.claim.entry_id for each in done if each.pending is None], rest)

    def _forget(self, org_id: int, entry_ids: Collection[str], rest: dict[str, Claim]) -> None:
        self._leases.release(org_id, [rest[each] for each in entry_ids])
        for entry_id in entry_ids:
            del rest[entry_id]

    async def _look(self, org_id: int, claims: list[Claim]) -> Seen:
        asked = [asked_of(org_id, claim, self._graphs) for claim in claims]
        async with self._database.transaction() as tx:
            return await look(tx, org_id, self._keyring.of(org_id), asked, self._retries, self._clock.now())

    async def _record(self, org_id: int, done: list[Progress], seen: Seen) -> Recorded | None:
        """Write a slice; return None, with nothing written, when the database refuses one of several entries."""
        try:
            async with self._database.transaction() as tx:
                return await record(tx, org_id, self._keyring, done, seen)
        except RefusedDataError as error:
            if len(done) > 1:
                return None
            claim, reason = done[0].claim, str(error)
        _log.warning("refused_by_database", extra={"entry_id": claim.entry_id, "reason": reason})
        async with self._database.transaction() as tx:
            return await record(tx, org_id, self._keyring, [broken(claim, run_of(claim), reason)], seen)
