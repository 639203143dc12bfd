"""A webhook endpoint that hangs takes its own places and no other's, however much is due for it."""

import asyncio
from typing import Any

import msgspec

from api.delivery.guard import Guard
from api.delivery.webhook import BOUNDS, Webhooks
from api.engine.send import MOST_UNDER_WAY
from tests.delivery.conftest import LOOPBACK, Endpoint, endpoint, status
from tests.engine.conftest import Bench

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
SORT = {"id": "c", "type": "condition", "data": {"filters": [{"path": "hangs", "operator": "eq", "value": True}]}}
OTHERS = 20


def hook(name: str, server: Endpoint) -> dict[str, Any]:
    return {"id": name, "type": "send_webhook", "data": {"url": server.url()}}


async def test_a_flood_for_an_endpoint_that_hangs_holds_up_no_other(bench: Bench) -> None:
    over, patient = asyncio.Event(), Webhooks(Guard(LOOPBACK), patience=600)
    bench.ways = msgspec.structs.replace(bench.ways, webhooks=patient)
    bench.driver = bench.new_driver()

    async def hang(writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.write(status(200))

    async with endpoint(hang) as stuck, endpoint(status(200)) as other:
        nodes = [TRIGGER, SORT, hook("s", stuck), hook("o", other)]
        await bench.automation(nodes, [("t", "c"), ("c", "s", "true"), ("c", "o", "false")])
        for number in range(MOST_UNDER_WAY + OTHERS):
            await bench.send(f"{number}", {"externalId": f"{number}"}, hangs=number < MOST_UNDER_WAY)
        async with asyncio.timeout(20):
            while len(other.requests) < OTHERS:
                await bench.driver.drive(bench.org_id, "ready", 100)
        assert len(stuck.requests) == BOUNDS.lane
        over.set()
        await bench.driver.finish_deliveries()
    await patient.close()
