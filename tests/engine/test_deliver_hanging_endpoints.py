"""A hanging webhook endpoint delays only its own deliveries."""

import asyncio
from typing import Any

from api.channels.address_guard import AddressGuard
from api.channels.outgoing import Transports
from api.channels.webhook import LIMITS, WebhookSender
from api.engine.deliver import MAX_DELIVERIES
from tests.channels.conftest import LOOPBACK, Endpoint, endpoint, status
from tests.engine.conftest import EngineBench

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
SORT = {"id": "c", "type": "condition", "data": {"filters": [{"path": "hangs", "operator": "eq", "value": True}]}}
OTHERS = 20


def webhook_node(name: str, server: Endpoint) -> dict[str, Any]:
    return {"id": name, "type": "send_webhook", "data": {"url": server.url()}}


async def test_a_flood_for_a_hanging_endpoint_delays_no_other(bench: EngineBench) -> None:
    over, patient = asyncio.Event(), WebhookSender(AddressGuard(LOOPBACK), stall_timeout_s=600)
    bench.transports = Transports(dict(bench.transports.senders) | {"webhook": patient}, "http://localhost")
    bench.driver = bench.new_driver()

    async def hang(writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.write(status(200))

    async with endpoint(hang) as stuck, endpoint(status(200)) as other:
        nodes = [TRIGGER, SORT, webhook_node("s", stuck), webhook_node("o", other)]
        await bench.automation(nodes, [("t", "c"), ("c", "s", "true"), ("c", "o", "false")])
        for number in range(MAX_DELIVERIES + OTHERS):
            await bench.send(f"{number}", {"externalId": f"{number}"}, hangs=number < MAX_DELIVERIES)
        async with asyncio.timeout(20):
            while len(other.requests) < OTHERS:
                await bench.driver.drive(bench.org_id, "ready", 100)
        assert len(stuck.requests) == LIMITS.per_endpoint
        over.set()
        await bench.driver.deliveries.stop(60)
    await patient.close()
