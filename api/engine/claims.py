"""Claims: due entries taken by this process, and the leases under which it works on them.

A claim charges one attempt, raises the lease token of the entry and sets the time until which other engines leave it
alone. Every later write carries the token, so an engine that has lost its lease writes nothing. Leases are short, and
`Claims` renews them until the entry is recorded, however long that takes. A lease can still be lost, if the process was
suspended or the database unreachable; `Claims` notices that at the next renewal, or when something is written.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from api.clock import Clock
from api.store import entries as store
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.entries import Claim, Lane
from api.store.query import COMMIT, run
from workbench.language.run import Run, State

LEASE = timedelta(seconds=10)
# An entry behind another one of its contact is released when that one ends. If it was cancelled or moved to another
# contact instead, the entry is read again after this time.
PUT_BACK_TIME = timedelta(minutes=1)


class Claims:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._held: dict[int, dict[str, Claim]] = {}  # organization -> entry -> claim with its latest lease
        self._renewal: asyncio.Task[None] | None = None
        self._paused: dict[int, set[str]] = {}  # organization -> automations that were paused at the latest renewal

    async def take(self, org_id: int, lane: Lane, limit: int) -> list[Claim]:
        """Claim the first due entry of up to `limit` contacts. Pass the claims to `hold` to keep their leases."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            (due_entries,) = await run(tx, store.lock_due_entries(org_id, lane, now, limit))
            if not due_entries:
                return []
            # A statement of its own: it must see what was committed before the turns were locked.
            claim = store.claim_entries(org_id, due_entries, now, now + LEASE, now + PUT_BACK_TIME)
            claims, _ = await run(tx, claim, COMMIT)
        return claims

    async def rescue(self, org_id: int, limit: int) -> int:
        """Make up to `limit` entries with an expired lease due again; return their number."""
        async with self._database.transaction() as tx:
            rescued, _ = await run(tx, store.rescue_entries(org_id, self._clock.now(), limit), COMMIT)
        return rescued

    def hold(self, org_id: int, claims: Iterable[Claim]) -> None:
        """Renew the leases of these claims from now on."""
        claims_by_entry = self._held.setdefault(org_id, {})
        for claim in claims:
            current = claims_by_entry.get(claim.entry_id)
            # A process that was suspended for longer than a lease may claim an entry again while a delivery of its
            # earlier claim is still waiting. Only the claim with the higher token counts.
            if current is None or current.token < claim.token:
                claims_by_entry[claim.entry_id] = claim
        if claims_by_entry and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._renew_until_released())

    def release(self, org_id: int, claims: Iterable[Claim]) -> None:
        """Stop renewing the leases of these claims."""
        for claim in claims:
            if self._current(org_id, claim) is not None:
                del self._held[org_id][claim.entry_id]
        if not self._held.get(org_id):
            self._held.pop(org_id, None)
            self._paused.pop(org_id, None)

    def may_leave(self, org_id: int, claim: Claim) -> bool:
        """Return whether a message may leave for the entry: the claim is valid, and a pause has not been noticed."""
        return self.is_valid(org_id, claim) and claim.automation_id not in self._paused.get(org_id, ())

    def is_valid(self, org_id: int, claim: Claim) -> bool:
        """Return whether no other engine can have claimed the entry: only then may a message leave for it."""
        current = self._current(org_id, claim)
        return current is not None and self._clock.now() < current.lease_until

    def _current(self, org_id: int, claim: Claim) -> Claim | None:
        current = self._held.get(org_id, {}).get(claim.entry_id)
        return current if current is not None and current.token == claim.token else None

    async def _renew_until_released(self) -> None:
        while self._held:
            # Three renewals per lease: two may fail before it expires.
            await asyncio.sleep(LEASE.total_seconds() / 3)
            for org_id, claims_by_entry in list(self._held.items()):
                with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
                    await self._renew(org_id, list(claims_by_entry.values()))

    async def _renew(self, org_id: int, claims: list[Claim]) -> None:
        lease_until = self._clock.now() + LEASE
        async with self._database.transaction() as tx:
            statuses = store.read_automation_statuses(org_id, list({claim.automation_id for claim in claims}))
            renewed_ids, automations, _ = await run(
                tx, store.renew_leases(org_id, claims, lease_until), statuses, COMMIT
            )
        if org_id in self._held:
            self._paused[org_id] = {automation_id for automation_id, status in automations.items() if status.paused}
        for claim in claims:
            if self._current(org_id, claim) is None:
                continue  # released, or claimed again, while the statement ran
            if claim.entry_id in renewed_ids:
                self._held[org_id][claim.entry_id] = msgspec.structs.replace(claim, lease_until=lease_until)
            else:
                self.release(org_id, [claim])


def run_of(claim: Claim) -> Run:
    """Return the claimed entry as the interpreter sees it."""
    return Run(
        claim.entry_id,
        claim.automation_id,
        State.RUNNING,
        claim.node_id,
        claim.step,
        claim.attempt,
        since=claim.since,
        since_id=claim.since_id or (claim.event_id if claim.is_first_walk else None),
        event_id=claim.event_id,
        resumed=claim.resumed,
    )
