"""The loop of the engine wakes at due times without a notification, and lets deliveries end when it stops."""

import asyncio
from datetime import timedelta

from api.clock import Clock
from api.engine.loop import Engine
from api.store.engines import Listener
from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
DELAY = {"id": "d", "type": "delay", "data": {"seconds": 1}}


async def wait_for_end(bench: EngineBench) -> None:
    async with asyncio.timeout(10):
        while True:
            if await bench.entries("state") == [("completed",)]:
                return
            await asyncio.sleep(0.02)


async def test_a_delay_ends_on_time_without_a_notification(bench: EngineBench) -> None:
    clock = Clock()
    await bench.database.calibrate(clock)
    engine = Engine(bench.database, bench.new_driver(), clock, Listener(bench.database.dsn))
    await bench.automation([TRIGGER, DELAY], [("t", "d")])
    running = asyncio.create_task(engine.run())
    await bench.send("k")
    await wait_for_end(bench)
    engine.stop()
    await running
    ((waited,),) = await bench.fetch(
        "SELECT max(at) - min(at) FROM entry_steps WHERE org_id = %s AND node_id = 'd'", bench.org_id
    )
    assert waited == timedelta(seconds=1)


async def test_an_engine_that_stops_finishes_started_deliveries(bench: EngineBench) -> None:
    requested = asyncio.Event()

    async def slow(writer: asyncio.StreamWriter) -> None:
        requested.set()
        await asyncio.sleep(0.3)
        writer.write(status(200))

    async with endpoint(slow) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await bench.automation([TRIGGER, hook], [("t", "h")])
        engine = Engine(bench.database, bench.new_driver(), bench.clock, Listener(bench.database.dsn))
        running = asyncio.create_task(engine.run())
        await bench.send("k")
        await requested.wait()
        engine.stop()
        await running
    assert await bench.entries() == [("completed", "completed")]
