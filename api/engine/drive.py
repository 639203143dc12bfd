"""Drive one batch of one organization: claim, read facts, decide, record, deliver.

1. A transaction claims entries, at most one of each contact: the entries of a contact are decided one at a time, in the
   order in which they are due, also while an email or webhook of one of them is under way.
2. A second transaction reads the facts for their decisions, without locks.
3. A third transaction records the decisions, fenced by the lease tokens: a driver that has lost its lease writes
   nothing. It also stores emails and webhooks.
4. Tasks send these. When a delivery is recorded, its entry continues here.
"""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from api.channels.outgoing import Transports
from api.clock import Clock
from api.crypto import Keyring
from api.engine.claims import Claims
from api.engine.deliver import Deliveries, DeliveryContext
from api.engine.facts import BatchFacts, Graphs, read_facts
from api.engine.progress import EntryProgress, advance_slice, dead_entry
from api.engine.record import (
    CancelledEntries,
    EngineCounts,
    LostLeases,
    RecordedBatch,
    RecordResult,
    StaleFacts,
    record,
)
from api.store.database import Database, RefusedDataError
from api.store.entries import Claim, Lane, count_joined
from api.store.query import run
from workbench.language.channel import RetryPolicy

MAX_JOINED_EVENTS = 2_000  # in memory at a time, unless one entry has more: 1,000, or several times that after merges
MAX_CLAIMS = 10  # of one call of `drive`: a contact with many due entries must not delay other organizations

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
        self.deliveries = Deliveries(
            DeliveryContext(database, keyring, clock, transports, self._claims, self._graphs, self.counts),
            resume=self._resume,
        )

    async def drive(self, org_id: int, lane: Lane, limit: int) -> int:
        """Claim up to `limit` due entries of a lane and advance them as far as possible; return how many were claimed.

        A claim has one entry of each contact. If more are due, the next ones follow, up to `MAX_CLAIMS` times. An entry
        that sends an email or webhook continues after this returns, when the delivery has ended.
        """
        claimed = 0
        for _ in range(MAX_CLAIMS):
            room = min(limit - claimed, self.deliveries.room(org_id))
            claims = await self._claims.take(org_id, lane, room) if room else []
            claimed += len(claims)
            if not claims or not await self._process(org_id, claims):
                break
        return claimed

    async def _resume(self, org_id: int, claim: Claim) -> None:
        await self._process(org_id, [claim])

    async def rescue(self, org_id: int, limit: int) -> int:
        rescued = await self._claims.rescue(org_id, limit)
        if rescued:
            self.counts.rescued += rescued
            _log.warning("lease_expired", extra={"org_id": org_id, "entries": rescued})
        return rescued

    async def _process(self, org_id: int, claims: list[Claim]) -> bool:
        """Advance claimed entries as far as possible, slice by slice; each slice reads its own facts.

        Returns whether other entries of their contacts are due now.
        """
        released = False
        remaining = {claim.entry_id: claim for claim in claims}
        singles = 0  # how many of the next entries are recorded alone
        self._claims.hold(org_id, claims)
        try:
            await self._graphs.load(org_id, claims)
            joined = await self._count_joined(org_id, claims)
            while remaining:
                batch_claims = _next_slice(remaining.values(), joined)[: 1 if singles else None]
                facts = await self._read_facts(org_id, batch_claims)
                batch = await asyncio.to_thread(advance_slice, org_id, batch_claims, self._graphs, facts)
                result = await self._record(org_id, batch, facts)
                if result is None:
                    # The database rejected an entry of the slice. Record them one by one, so that only that entry
                    # becomes a dead letter.
                    singles = len(batch)
                    continue
                if isinstance(result, RecordedBatch):
                    singles = max(singles - 1, 0)
                    released = released or result.released
                self._settle(org_id, remaining, batch, result)
        finally:
            self._claims.release(org_id, remaining.values())
        return released

    def _settle(
        self, org_id: int, remaining: dict[str, Claim], batch: list[EntryProgress], result: RecordResult
    ) -> None:
        """Take the entries that are done from `remaining`, release those without a delivery, and start deliveries."""
        match result:
            case RecordedBatch(outgoing=outgoing):
                self.counts.add(org_id, batch)
                done = [(progress, remaining.pop(progress.claim.entry_id)) for progress in batch]
                # An entry with a delivery keeps its lease until the delivery has ended.
                self._claims.release(org_id, [claim for progress, claim in done if progress.pending is None])
                self.deliveries.start(org_id, outgoing)
            case StaleFacts():
                pass  # nothing was written: read the facts again and decide again
            case CancelledEntries(outcomes):
                # The next decision ends these entries: `cancelled_outcome` takes effect before any step.
                for entry_id, outcome in outcomes.items():
                    remaining[entry_id] = msgspec.structs.replace(remaining[entry_id], cancelled_outcome=outcome)
            case LostLeases(entry_ids):
                self.counts.add_lost(org_id, len(entry_ids))
                self._claims.release(org_id, [remaining.pop(entry_id) for entry_id in entry_ids])

    async def _count_joined(self, org_id: int, claims: list[Claim]) -> dict[str, int]:
        """Return how many events the entries of digests collected, by entry; entries without any are left out."""
        collecting = [
            claim.entry_id
            for claim in claims
            if claim.node_id is not None and (graph := self._graphs.of(org_id, claim)) is not None and graph.collects
        ]
        if not collecting:
            return {}
        async with self._database.transaction() as tx:
            (joined,) = await run(tx, count_joined(org_id, collecting))
        return joined

    async def _read_facts(self, org_id: int, claims: list[Claim]) -> BatchFacts:
        keys, now = self._keyring.of(org_id), self._clock.now()
        async with self._database.transaction() as tx:
            return await read_facts(tx, org_id, keys, claims, self._graphs, self._retries, now)

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


def _next_slice(claims: Iterable[Claim], joined: dict[str, int]) -> list[Claim]:
    """Return the first claims, at least one, that collected at most `MAX_JOINED_EVENTS` together."""
    first: list[Claim] = []
    events = 0
    for claim in claims:
        events += joined.get(claim.entry_id, 0)
        if first and events > MAX_JOINED_EVENTS:
            break
        first.append(claim)
    return first
