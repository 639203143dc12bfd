"""Drive one batch of one organization: claim, read facts, decide, record, deliver.

A first transaction claims entries. The facts for their decisions are read in a second, without locks. A third records
what was decided, fenced by the lease tokens: a driver that has lost its lease writes nothing. Emails and webhooks are
stored with that third transaction and then sent in tasks of their own; the entry continues here once its delivery is
recorded.
"""

import asyncio
import logging

import msgspec

from api.clock import Clock
from api.crypto import Keyring
from api.engine.claims import Claims, Lane
from api.engine.deliver import Deliveries, DeliveryContext, Transports
from api.engine.facts import BatchFacts, Graphs, facts_request, read_facts
from api.engine.progress import EntryProgress, advance_slice, dead_entry
from api.engine.record import CancelledEntries, EngineCounts, LostLeases, Recorded, RecordResult, StaleFacts, record
from api.store.database import Database, RefusedDataError
from api.store.entries import Claim
from workbench.language.run import RetryPolicy

_log = logging.getLogger("workbench.engine")


class Driver:
    def __init__(
        self, database: Database, keyring: Keyring, clock: Clock, retries: RetryPolicy, transports: Transports
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._retries = retries
        self._graphs = Graphs(database)
        self._claims = Claims(database, clock)
        self.counts = EngineCounts()
        self._deliveries = Deliveries(
            DeliveryContext(database, keyring, clock, transports, self._claims, self._graphs, self.counts),
            resume=lambda org_id, claim: self._process(org_id, [claim]),
        )

    @property
    def deliveries_under_way(self) -> int:
        """The number of emails and webhooks that are being sent."""
        return len(self._deliveries)

    @property
    def is_saturated(self) -> bool:
        return self._deliveries.is_saturated

    async def finish_deliveries(self) -> None:
        await self._deliveries.finish()

    async def stop(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for deliveries under way, then cancel them."""
        await self._deliveries.stop(timeout_s)

    async def drive(self, org_id: int, lane: Lane, limit: int) -> int:
        """Claim up to `limit` due entries of a lane and advance them as far as possible; return how many were claimed.

        An entry that sends an email or webhook continues after this returns, when the delivery has ended.
        """
        limit = min(limit, self._deliveries.room(org_id))
        claims = await self._claims.take(org_id, lane, limit) if limit else []
        if claims:
            await self._process(org_id, claims)
        return len(claims)

    async def rescue(self, org_id: int, limit: int) -> int:
        rescued = await self._claims.rescue(org_id, limit)
        if rescued:
            self.counts.rescued += rescued
            _log.warning("lease_expired", extra={"org_id": org_id, "entries": rescued})
        return rescued

    async def _process(self, org_id: int, claims: list[Claim]) -> None:
        """Advance claimed entries as far as possible, slice by slice; each slice reads its own facts."""
        remaining = {claim.entry_id: claim for claim in claims}
        singles = 0  # how many of the next entries are recorded alone
        self._claims.hold(org_id, claims)
        try:
            await self._graphs.load(org_id, claims)
            while remaining:
                batch_claims = list(remaining.values())[: 1 if singles else None]
                facts = await self._read_facts(org_id, batch_claims)
                batch = await asyncio.to_thread(advance_slice, org_id, batch_claims, self._graphs, facts)
                match await self._record(org_id, batch, facts):
                    case None:
                        # The database rejected an entry of the slice. Record them one by one, so that only that entry
                        # becomes a dead letter.
                        singles = len(batch)
                    case Recorded(outgoing):
                        singles = max(singles - 1, 0)
                        self.counts.add(org_id, batch)
                        for progress in batch:
                            claim = remaining.pop(progress.claim.entry_id)
                            if progress.pending is None:  # otherwise it keeps its lease until its delivery has ended
                                self._claims.release(org_id, [claim])
                        self._deliveries.start(org_id, outgoing)
                    case StaleFacts():
                        pass  # nothing was written: read the facts again and decide again
                    case CancelledEntries(outcomes):
                        # They are decided again, and end: a reported outcome cancels before any step.
                        for entry_id, outcome in outcomes.items():
                            remaining[entry_id] = msgspec.structs.replace(
                                remaining[entry_id], cancelled_outcome=outcome
                            )
                    case LostLeases(entry_ids):
                        self.counts.add_lost(org_id, len(entry_ids))
                        self._claims.release(org_id, [remaining.pop(entry_id) for entry_id in entry_ids])
        finally:
            self._claims.release(org_id, remaining.values())

    async def _read_facts(self, org_id: int, claims: list[Claim]) -> BatchFacts:
        requests = [facts_request(org_id, claim, self._graphs) for claim in claims]
        async with self._database.transaction() as tx:
            return await read_facts(tx, org_id, self._keyring.of(org_id), requests, self._retries, self._clock.now())

    async def _record(self, org_id: int, batch: list[EntryProgress], facts: BatchFacts) -> RecordResult | None:
        """Write a slice; return None, with nothing written, if the database rejects one of several entries."""
        try:
            async with self._database.transaction() as tx:
                return await record(tx, org_id, self._keyring, batch, facts)
        except RefusedDataError as error:
            if len(batch) > 1:
                return None
            claim, reason = batch[0].claim, str(error)
        _log.warning("rejected_by_database", extra={"entry_id": claim.entry_id, "reason": reason})
        async with self._database.transaction() as tx:
            return await record(tx, org_id, self._keyring, [dead_entry(claim, reason)], facts)
