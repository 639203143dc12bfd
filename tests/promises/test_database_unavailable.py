"""While Postgres is down, every answer is a quick 503; afterwards, requests succeed again (docs/trust.md B11, B12)."""

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
from tests.installation import Installation
from tests.promises.conftest import Load, check_promises, query, until
from tests.servers import create_database

SOON_S = 3.0  # seconds: the two that are promised, and what clients on the same two processors add


@pytest.fixture(scope="module")
def killable_postgres() -> Iterator[EmbeddedPostgres]:
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
async def installation(killable_postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Installation]:
    server = killable_postgres.start()
    name = f"mortal_{token(4).hex()}"
    create_database(server, name)
    dsn, admin_dsn = (
        urlsplit(address)._replace(path=f"/{name}").geturl() for address in (server.dsn, server.admin_dsn)
    )
    await migrate(dsn, admin_dsn=admin_dsn)
    built = Installation(dsn, tmp_path)
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
async def test_b11_postgres_stops_and_returns_under_load(
    killable_postgres: EmbeddedPostgres, installation: Installation, leave: object
) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    await asyncio.to_thread(leave, killable_postgres)  # type: ignore[arg-type]
    later = load.count("later")
    await until(lambda: load.count("later") >= later + 20)
    await asyncio.to_thread(killable_postgres.start)
    back, enough = time.monotonic(), load.count("new") + 200
    await until(lambda: load.count("new") >= enough)
    assert time.monotonic() - back < 5
    load.stop()
    await running
    await load.settle()
    assert load.slowest < SOON_S
    assert load.count("unknown") == 0
    await check_promises(installation.dsn, load)


async def test_b11_a_frozen_postgres_is_treated_as_unavailable(
    killable_postgres: EmbeddedPostgres, installation: Installation
) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    stopped = pids(killable_postgres)
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
    assert load.slowest < SOON_S
    await check_promises(installation.dsn, load)


async def test_b12_backends_terminated_at_random_cost_at_most_a_retry(installation: Installation) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api()])
    running = asyncio.create_task(load.run())
    chance = Random(12)
    others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    for _ in range(20):
        enough = load.count("new") + 20
        await until(lambda enough=enough: load.count("new") >= enough)  # type: ignore[misc]
        pids = [pid for (pid,) in await query(installation.dsn, others)]
        await query(installation.dsn, "SELECT pg_terminate_backend(%s)", chance.choice(pids))
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") == 0
    assert load.slowest < SOON_S
    await check_promises(installation.dsn, load)
