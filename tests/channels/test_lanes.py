"""Places on a road: who waits for one, and who is told at once that there is none."""

import asyncio
import contextlib

import pytest

from api.channels.limits import DeliveryLimiter, DeliveryLimits, NoSlotError

EVER = 60.0


class Delivery:
    """Somebody who takes a place and leaves it when told to."""

    def __init__(self, lanes: DeliveryLimiter, org_id: int = 1, endpoint: str = "a") -> None:
        self.inside, self._leave = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run(lanes, org_id, endpoint))

    async def _run(self, lanes: DeliveryLimiter, org_id: int, endpoint: str) -> None:
        async with lanes.slot(org_id, endpoint):
            self.inside.set()
            await self._leave.wait()

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def inside(lanes: DeliveryLimiter, *endpoints: str, org_id: int = 1) -> list[Delivery]:
    """Have deliveries in places."""
    made = [Delivery(lanes, org_id, endpoint) for endpoint in endpoints]
    for visitor in made:
        await visitor.inside.wait()
    return made


async def refused(lanes: DeliveryLimiter, org_id: int, endpoint: str) -> bool:
    with contextlib.suppress(NoSlotError):
        async with lanes.slot(org_id, endpoint):
            return False
    return True


async def test_a_delivery_to_a_full_endpoint_waits_for_the_next_slot() -> None:
    lanes = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=9), EVER)
    (first,) = await inside(lanes, "a")
    second = Delivery(lanes)
    assert not await refused(lanes, 1, "b")
    assert not second.inside.is_set()
    await first.leave()
    await second.inside.wait()
    await second.leave()


async def test_a_delivery_is_rejected_when_too_many_are_waiting() -> None:
    lanes = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=1), EVER)
    (first,) = await inside(lanes, "a")
    second = Delivery(lanes)
    await asyncio.sleep(0)
    assert await refused(lanes, 1, "a")
    for visitor in (first, second):
        await visitor.leave()


async def test_a_delivery_is_rejected_when_nothing_moves() -> None:
    lanes = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=9, waiting=9), 0.05)
    (first,) = await inside(lanes, "a")
    assert await refused(lanes, 1, "a")
    async with asyncio.timeout(EVER):  # at once, now
        assert [await refused(lanes, 1, "a") for _ in range(1_000)] == [True] * 1_000
    await first.leave()
    assert not await refused(lanes, 1, "a")


async def test_the_endpoints_of_an_organization_share_a_road() -> None:
    lanes = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=2, waiting=0), EVER)
    made = await inside(lanes, "a", "b")
    assert await refused(lanes, 1, "c")
    assert not await refused(lanes, 2, "a")
    for visitor in made:
        await visitor.leave()
    assert not await refused(lanes, 1, "c")


async def test_an_empty_road_is_forgotten() -> None:
    lanes = DeliveryLimiter(DeliveryLimits(per_endpoint=1, per_organization=1, waiting=0), EVER)
    (first,) = await inside(lanes, "a")
    assert await refused(lanes, 1, "b")
    first.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first.task
    assert lanes._slots == {}
