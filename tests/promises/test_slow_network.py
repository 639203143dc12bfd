"""A slow network to Postgres costs only throughput; a full disk for logs costs nothing (docs/trust.md B16, B19)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.acceptance.conftest import House
from tests.promises.conftest import Load, check_promises, query, until
from tests.proxy import PostgresProxy

ROUND_TRIP = 0.2  # seconds
RETRANSMISSION = 0.4  # what a lost packet costs
LOSS = 0.05
_END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user"


def lossy() -> Callable[[], float]:
    """Return what says how late a piece arrives, in seconds: one in twenty was lost and sent again."""
    chance = Random(19)
    return lambda: ROUND_TRIP / 2 + (RETRANSMISSION if chance.random() < LOSS else 0)


async def test_b19_a_slow_network_to_postgres_costs_throughput_alone(house: House) -> None:
    keys = await house.organization()
    near = house.dsn
    async with PostgresProxy(near, lossy()).open() as far:
        load = Load(keys["live"], [await asyncio.to_thread(house.start_api, DATABASE_URL=far)])
        running = asyncio.create_task(load.run(clients=32))
        await until(lambda: load.count("new") >= 100, seconds=60)
        load.stop()
        await running
        await load.settle()
        ((connections,),) = await query(near, _OURS)
        assert load.count("unknown") == 0
        assert connections <= 20
        await asyncio.to_thread(house.stop)
    await check_promises(near, load)


async def test_b16_a_full_disk_for_logs_costs_no_request(house: House) -> None:
    keys = await house.organization()
    house.log = Path("/dev/full")
    load = Load(keys["live"], [house.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 100)
    await query(house.dsn, _END_OTHERS)  # of which something would be logged
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") == 0
    await check_promises(house.dsn, load)
