"""The leases that this process holds: renewed until the entries are recorded, however long that takes."""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from api.clock import Clock
from api.store import engine as store
from api.store.calls import COMMIT, run
from api.store.database import ConflictError, Database, UnavailableError
from api.store.engine import Claim

LEASE = timedelta(seconds=10)


class Leases:
    """Keeps what is held; a lease that was lost all the same is noticed at the next renewal, or when something is written.

    A process that stood still may claim an entry again while it still works on its claim before: only the last one counts.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._held: dict[int, dict[str, Claim]] = {}  # by entry, each as it was renewed last
        self._keeper: asyncio.Task[None] | None = None

    def hold(self, org_id: int, claims: Iterable[Claim]) -> None:
        """Keep the leases of these entries, claimed or advanced just now, from here on."""
        held = self._held.setdefault(org_id, {})
        for claim in claims:
            known = held.get(claim.entry_id)
            if known is None or known.token < claim.token:
                held[claim.entry_id] = claim
        if held and (self._keeper is None or self._keeper.done()):
            self._keeper = asyncio.create_task(self._keep())

    def release(self, org_id: int, claims: Iterable[Claim]) -> None:
        """Keep them no longer."""
        for claim in claims:
            if self._known(org_id, claim) is not None:
                del self._held[org_id][claim.entry_id]
        if not self._held.get(org_id):
            self._held.pop(org_id, None)

    def is_ours(self, org_id: int, claim: Claim) -> bool:
        """Return whether nobody else can have the entry by now: only then may something begin to leave the house."""
        known = self._known(org_id, claim)
        return known is not None and self._clock.now() < known.lease_until

    def _known(self, org_id: int, claim: Claim) -> Claim | None:
        known = self._held.get(org_id, {}).get(claim.entry_id)
        return known if known is not None and known.token == claim.token else None

    async def _keep(self) -> None:
        while self._held:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            for org_id, held in list(self._held.items()):
                with contextlib.suppress(UnavailableError, ConflictError):
                    await self._renew(org_id, list(held.values()))

    async def _renew(self, org_id: int, claims: list[Claim]) -> None:
        until = self._clock.now() + LEASE
        async with self._database.transaction() as tx:
            kept, _ = await run(tx, store.renew_leases(org_id, claims, until), COMMIT)
        for claim in claims:
            if self._known(org_id, claim) is None:
                continue  # let go of meanwhile
            if claim.entry_id in kept:
                self._held[org_id][claim.entry_id] = msgspec.structs.replace(claim, lease_until=until)
            else:
                self.release(org_id, [claim])
