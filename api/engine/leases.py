"""The leases that this process holds: renewed until the entries are recorded, however long that takes."""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from api.clock import Clock
from api.store import engine as store
from api.store.calls import COMMIT, run
from api.store.database import ConflictError, Database, UnavailableError
from api.store.engine import Claim

LEASE = timedelta(seconds=10)


class Leases:
    """Keeps what is held; a lease that was lost all the same is noticed at the next renewal, or when something is written."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._held: dict[int, dict[str, Claim]] = {}
        self._until: dict[str, datetime] = {}
        self._keeper: asyncio.Task[None] | None = None

    def hold(self, org_id: int, claims: Iterable[Claim]) -> None:
        """Keep the leases of these entries, claimed or advanced just now, from here on."""
        held = self._held.setdefault(org_id, {})
        for claim in claims:
            held[claim.entry_id] = claim
            self._until.setdefault(claim.entry_id, claim.lease_until)
        if held and (self._keeper is None or self._keeper.done()):
            self._keeper = asyncio.create_task(self._keep())

    def release(self, org_id: int, entry_ids: Iterable[str]) -> None:
        """Keep them no longer."""
        held = self._held.get(org_id, {})
        for entry_id in list(entry_ids):
            held.pop(entry_id, None)
            self._until.pop(entry_id, None)
        if not held:
            self._held.pop(org_id, None)

    def is_ours(self, entry_id: str) -> bool:
        """Return whether nobody else can have the entry by now: only then may something begin to leave the house."""
        until = self._until.get(entry_id)
        return until is not None and self._clock.now() < until

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
        held = self._held.get(org_id, {})
        for claim in claims:
            if claim.entry_id not in held or held[claim.entry_id].token != claim.token:
                continue  # let go of meanwhile
            if claim.entry_id in kept:
                self._until[claim.entry_id] = until
            else:
                self._until.pop(claim.entry_id, None)
