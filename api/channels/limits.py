"""Limits on concurrent deliveries, so that an endpoint that hangs delays no other.

A delivery takes a slot of its endpoint and one of its organization. It waits for a free slot as long as other
deliveries start and finish. It gives up once nothing has moved for the stall timeout, and immediately if too many are
waiting.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec


class NoSlotError(Exception):
    """No slot was free, and none became free in time."""


class DeliveryLimits(msgspec.Struct, frozen=True):
    """Concurrent deliveries to one endpoint and of one organization, and how many more may wait for each."""

    per_endpoint: int
    per_organization: int
    waiting: int


class _Slots:
    def __init__(self, number: int, limit: int) -> None:
        self.free = asyncio.Semaphore(number)
        self.limit = limit  # maximum number of deliveries in a slot or waiting for one
        self.deliveries = 0
        self.moved_at = asyncio.get_running_loop().time()  # when a delivery last took or released a slot

    async def acquire(self, stall_timeout_s: float) -> None:
        if self.deliveries > self.limit:
            raise NoSlotError
        while True:
            moved_at = self.moved_at
            try:
                async with asyncio.timeout_at(moved_at + stall_timeout_s):
                    await self.free.acquire()
                    return
            except TimeoutError:
                if self.moved_at == moved_at:
                    raise NoSlotError from None


class DeliveryLimiter:
    """Slots for deliveries, kept only while a delivery uses or waits for them."""

    def __init__(self, limits: DeliveryLimits, stall_timeout_s: float) -> None:
        self._limits, self._stall_timeout_s = limits, stall_timeout_s
        self._slots: dict[tuple[int, str], _Slots] = {}

    @contextlib.asynccontextmanager
    async def slot(self, org_id: int, endpoint: str) -> AsyncIterator[None]:
        """Hold a slot for a block; raise NoSlotError."""
        limits = self._limits
        async with (
            self._take((org_id, endpoint), limits.per_endpoint),
            self._take((org_id, ""), limits.per_organization),
        ):
            yield

    @contextlib.asynccontextmanager
    async def _take(self, key: tuple[int, str], number: int) -> AsyncIterator[None]:
        slots = self._slots.setdefault(key, _Slots(number, number + self._limits.waiting))
        slots.deliveries += 1  # before the wait, so that these slots are not dropped during it
        try:
            await slots.acquire(self._stall_timeout_s)
            slots.moved_at = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                slots.moved_at = asyncio.get_running_loop().time()
                slots.free.release()
        finally:
            slots.deliveries -= 1
            if not slots.deliveries:
                del self._slots[key]
