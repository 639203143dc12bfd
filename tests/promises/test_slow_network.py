"""A slow network to Postgres costs throughput and nothing else; a full disk for logs costs nothing (trust.md B16, B19)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from psycopg.conninfo import conninfo_to_dict

from api.store.database import libpq_dsn
from tests.acceptance.conftest import House
from tests.promises.conftest import Load, check_promises, query, until

ROUND_TRIP = 0.2  # seconds
RETRANSMISSION = 0.4  # what a lost packet costs
LOSS = 0.05
_END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""


class Road:
    """Forwards connections to Postgres; each piece arrives late, and one in twenty later still, in order as TCP has it."""

    def __init__(self, host: str, port: str) -> None:
        self._host, self._port = host, port
        self._chance = Random(19)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await self._there()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._carry(reader, there_writer))
            both.create_task(self._carry(there_reader, writer))

    async def _there(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                lost = self._chance.random() < LOSS
                await asyncio.sleep(ROUND_TRIP / 2 + (RETRANSMISSION if lost else 0))
                writer.write(piece)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def slow_road(dsn: str) -> AsyncIterator[str]:
    """Give an address of the same database at the end of a slow road."""
    known = conninfo_to_dict(libpq_dsn(dsn))
    server = await asyncio.start_server(Road(str(known["host"]), str(known["port"])), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://{known['user']}:{known['password']}@127.0.0.1:{port}/{known['dbname']}"


async def test_b19_a_slow_network_to_postgres_costs_throughput_alone(house: House) -> None:
    keys = await house.organization()
    near = house.dsn
    async with slow_road(near) as far:
        load = Load(keys["live"], [await asyncio.to_thread(house.start_api, DATABASE_URL=far)])
        running = asyncio.create_task(load.run(clients=32))
        await until(lambda: load.count("new") >= 100, seconds=60)
        load.stop()
        await running
        await load.settle()
        ((connections,),) = await query(
            near, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        )
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
