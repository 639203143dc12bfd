"""Slots for deliveries: when a delivery waits for a slot, and when it is refused."""

import asyncio
import contextlib

import pytest

from api.channels.webhook import DeliveryLimiter, DeliveryLimits, NoSlotError

LONG_S = 60.0


class Delivery:
    """A delivery that takes a slot and holds it until `release`."""

    def __init__(self, limiter: DeliveryLimiter, org_id: int = 1, endpoint: str = "a") -> None:
        self.started, self._released = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run(limiter, org_id, endpoint))

    async def _run(self, limiter: DeliveryLimiter, org_id: int, endpoint: str) -> None:
        async with limiter.slot(org_id, endpoint):
            self.started.set()
            await self._released.wait()

    async def release(self) -> None:
        self._released.set()
        await self.task


async def start_deliveries(limiter: DeliveryLimiter, *endpoints: str) -> list[Delivery]:
    """Return deliveries that hold slots."""
    deliveries = [Delivery(limiter, endpoint=endpoint) for endpoint in endpoints]
    async with asyncio.timeout(LONG_S):
        for delivery in deliveries:
            await delivery.started.wait()
    return deliveries


async def is_refused(limiter: DeliveryLimiter, org_id: int, endpoint: str) -> bool:
    with contextlib.suppress(NoSlotError):
        async with limiter.slot(org_id, endpoint):
            return False
    return True


async def test_a_delivery_to_a_full_endpoint_waits_for_the_next_slot() -> None:
    limiter = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=9), LONG_S)
    (first,) = await start_deliveries(limiter, "a")
    second = Delivery(limiter)
    assert not await is_refused(limiter, 1, "b")
    assert not second.started.is_set()
    await first.release()
    await second.started.wait()
    await second.release()


async def test_a_delivery_is_rejected_when_too_many_are_waiting() -> None:
    limiter = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=1), LONG_S)
    (first,) = await start_deliveries(limiter, "a")
    second = Delivery(limiter)
    await asyncio.sleep(0)
    assert await is_refused(limiter, 1, "a")
    for delivery in (first, second):
        await delivery.release()


async def test_a_delivery_is_rejected_when_nothing_moves() -> None:
    limiter = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=9), 0.05)
    (first,) = await start_deliveries(limiter, "a")
    assert await is_refused(limiter, 1, "a")
    async with asyncio.timeout(LONG_S):  # nothing has moved for the stall timeout, so each is refused at once
        assert [await is_refused(limiter, 1, "a") for _ in range(1_000)] == [True] * 1_000
    await first.release()
    assert not await is_refused(limiter, 1, "a")


async def test_the_endpoints_of_an_organization_share_its_slots() -> None:
    limiter = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=2, waiting=0), LONG_S)
    deliveries = await start_deliveries(limiter, "a", "b")
    assert await is_refused(limiter, 1, "c")
    assert not await is_refused(limiter, 2, "a")
    for delivery in deliveries:
        await delivery.release()
    assert not await is_refused(limiter, 1, "c")


async def test_slots_without_deliveries_are_dropped() -> None:
    limiter = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=1, waiting=0), LONG_S)
    (first,) = await start_deliveries(limiter, "a")
    assert await is_refused(limiter, 1, "b")
    first.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first.task
    assert limiter._slots == {}
