"""A slow network to Postgres costs only throughput; a full disk for logs costs nothing (docs/trust.md B16, B19)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.installation import Installation
from tests.promises.conftest import Load, check_promises, query, until
from tests.proxy import PostgresProxy

ROUND_TRIP = 0.2  # seconds
RETRANSMISSION = 0.4  # what a lost packet costs
LOSS = 0.05
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
