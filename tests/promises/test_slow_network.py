"""A slow, broken or full neighbour costs only throughput (docs/trust.md B16, B18, B19)."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from api.engine.claims import LEASE
from tests.channels.conftest import endpoint, status
from tests.installation import Api, Installation
from tests.promises.conftest import Load, check_promises, query, until
from tests.proxy import PostgresProxy

ROUND_TRIP = 0.2  # seconds
RETRANSMISSION = 0.4  # what a lost packet costs
LOSS = 0.05
WEBHOOKS = 200  # an engine takes them all, and sends 16 at once
_END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user"


def packet_delays() -> Callable[[], float]:
    """Return a function that returns the delay of the next piece in seconds; one piece in twenty is sent again."""
    chance = Random(19)
    return lambda: ROUND_TRIP / 2 + (RETRANSMISSION if chance.random() < LOSS else 0)


async def test_b19_a_slow_network_to_postgres_reduces_only_the_throughput(installation: Installation) -> None:
    keys = await installation.organization()
    near = installation.dsn
    async with PostgresProxy(near, packet_delays()).open() as far:
        load = Load(keys["live"], [await asyncio.to_thread(installation.start_api, DATABASE_URL=far)])
        running = asyncio.create_task(load.run(clients=32))
        await until(lambda: load.count("new") >= 100, seconds=60)
        load.stop()
        await running
        await load.settle()
        ((connections,),) = await query(near, _OURS)
        assert load.count("unknown") == 0
        assert connections <= 20
        await asyncio.to_thread(installation.stop)
    await check_promises(near, load)


async def test_b18_an_engine_cut_off_from_postgres_starts_no_effect_after_its_lease(installation: Installation) -> None:
    keys = await installation.organization()
    api, begun = installation.start_api(), list[float]()
    is_cut, is_over = asyncio.Event(), asyncio.Event()

    async def answer_slowly(writer: asyncio.StreamWriter) -> None:
        begun.append(time.monotonic())
        await asyncio.sleep(0 if is_over.is_set() else 2)
        writer.write(status(200))

    async with endpoint(answer_slowly) as server:
        await asyncio.to_thread(send_webhooks, api, keys, server.url())
        # Nothing passes any more, in either direction, as when a network drops all packets.
        async with PostgresProxy(installation.dsn, lambda: 3_600 if is_cut.is_set() else 0).open() as far:
            engine = installation.start_engine(DATABASE_URL=far, WORKBENCH_WEBHOOK_ALLOW="127.0.0.0/8")
            await until(lambda: len(begun) >= 20)
            is_cut.set()
            lease_ends = time.monotonic() + LEASE.total_seconds()
            await asyncio.sleep(LEASE.total_seconds() + 5)
            engine.kill()
            assert begun[-1] < lease_ends + 1
            is_over.set()
        installation.start_engine(WORKBENCH_WEBHOOK_ALLOW="127.0.0.0/8")
        await until(lambda: len({request.headers["webhook-id"] for request in server.requests}) == WEBHOOKS, 120)


def send_webhooks(api: Api, keys: dict[str, str], url: str) -> None:
    """Publish an automation with a webhook, and send an event of each of many contacts."""
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "h", "type": "send_webhook", "data": {"url": url}}]
    graph = {"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "h"}]}
    with api.client(keys["workbench"]) as workbench:
        body = {"name": "hook", "triggerSpec": {"type": "app_event"}, "graph": graph}
        made = workbench.post("/automations", json=body).json()
        assert workbench.post(f"/automations/{made['id']}/publish", json={}).status_code == 200
    with api.client(keys["live"]) as backend:
        for start in range(0, WEBHOOKS, 100):
            events = [{"event": "e", "contact": {"externalId": f"{start + number}"}} for number in range(100)]
            assert backend.post("/events/batch", json={"events": events}).status_code == 202


async def test_b16_a_full_disk_for_logs_costs_no_request(installation: Installation) -> None:
    keys = await installation.organization()
    installation.log = Path("/dev/full")
    load = Load(keys["live"], [installation.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 100)
    await query(installation.dsn, _END_OTHERS)  # the processes log that their connections ended
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") == 0
    await check_promises(installation.dsn, load)
