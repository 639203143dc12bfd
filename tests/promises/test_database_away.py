"""While Postgres is down every answer is a quick 503; when it is back, so is the service (docs/trust.md B11, B12)."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from api.clock import token
from api.embedded import EmbeddedPostgres
from api.store.migrate import migrate
from tests.acceptance.conftest import House
from tests.promises.conftest import Load, check_promises, query, until
from tests.servers import create_database

SOON = 3.0  # seconds: the two that are promised, and what clients on the same two processors add


@pytest.fixture(scope="module")
def mortal() -> Iterator[EmbeddedPostgres]:
    """A Postgres that the tests may kill."""
    home = Path(tempfile.mkdtemp(prefix="workbench-mortal-"))
    home.chmod(0o755)
    embedded = EmbeddedPostgres(home)
    embedded.start()
    yield embedded
    embedded.stop()
    shutil.rmtree(embedded.data.parent, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def house(mortal: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[House]:
    server = mortal.start()
    name = f"mortal_{token(4).hex()}"
    create_database(server, name)
    dsn, admin_dsn = (
        urlsplit(address)._replace(path=f"/{name}").geturl() for address in (server.dsn, server.admin_dsn)
    )
    await migrate(dsn, admin_dsn=admin_dsn)
    built = House(dsn, tmp_path)
    yield built
    built.stop()


def pids(postgres: EmbeddedPostgres) -> list[int]:
    """Return the postmaster and its children."""
    postmaster = int((postgres.data / "postmaster.pid").read_text().split()[0])
    return [postmaster, *map(int, Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split())]


def kill(postgres: EmbeddedPostgres) -> None:
    for pid in pids(postgres):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("leave", [kill, EmbeddedPostgres.stop])
async def test_b11_postgres_goes_and_comes_back_under_load(
    mortal: EmbeddedPostgres, house: House, leave: object
) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    await asyncio.to_thread(leave, mortal)  # type: ignore[arg-type]
    later = load.count("later")
    await until(lambda: load.count("later") >= later + 20)
    await asyncio.to_thread(mortal.start)
    back, enough = time.monotonic(), load.count("new") + 200
    await until(lambda: load.count("new") >= enough)
    assert time.monotonic() - back < 5
    load.stop()
    await running
    await load.settle()
    assert load.slowest < SOON
    assert load.count("unknown") == 0
    await check_promises(house.dsn, load)


async def test_b11_a_postgres_that_stands_still_is_as_good_as_away(mortal: EmbeddedPostgres, house: House) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    stopped = pids(mortal)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    await until(lambda: load.count("later") >= 20)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    enough = load.count("new") + 200
    await until(lambda: load.count("new") >= enough, seconds=5)
    load.stop()
    await running
    await load.settle()
    assert load.slowest < SOON
    await check_promises(house.dsn, load)


async def test_b12_backends_terminated_at_random_cost_at_most_a_retry(house: House) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api()])
    running = asyncio.create_task(load.run())
    chance = Random(12)
    others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    for _ in range(20):
        enough = load.count("new") + 20
        await until(lambda enough=enough: load.count("new") >= enough)  # type: ignore[misc]
        pids = [pid for (pid,) in await query(house.dsn, others)]
        await query(house.dsn, "SELECT pg_terminate_backend(%s)", chance.choice(pids))
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") == 0
    assert load.slowest < SOON
    await check_promises(house.dsn, load)
