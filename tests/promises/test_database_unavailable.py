"""While Postgres is down, every answer is a quick 503; afterwards, requests succeed again (docs/trust.md B11, B12)."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest

from api.auth.key_format import WORKBENCH
from api.auth.keys import create
from api.clock import token
from api.embedded import EmbeddedPostgres
from api.store.migrate import migrate
from tests.installation import Installation
from tests.promises.conftest import Load, check_promises, query, until
from tests.servers import create_database

SOON_S = 3.0  # seconds: the two that are promised, and what clients on the same two processors add
READY_SOON_S, ANSWERED_S = 4.0, 10.0  # twice what is promised
GRAPH = {"nodes": [{"id": "t", "type": "app_event", "data": {}}], "edges": []}
ROUTES: list[tuple[str, str, object]] = [
    ("GET", "/readyz", None),
    ("GET", "/api/v1/automations", None),
    ("GET", "/api/v1/keys", None),
    ("GET", "/api/v1/entries", None),
    ("GET", "/api/v1/dead-letters", None),
    ("GET", "/api/v1/events/catalog", None),
    ("GET", "/api/v1/events/recent", None),
    ("GET", "/api/v1/segments", None),
    ("GET", "/api/v1/chain", None),
    ("GET", "/api/v1/usage", None),
    ("GET", "/api/v1/audit", None),
    ("GET", "/api/v1/webhooks/secret", None),
    ("POST", "/api/v1/sql", {"sql": "SELECT count(*) FROM app_events"}),
    ("POST", "/api/v1/segments/preview", {"sql": "SELECT id AS contact_id FROM contacts"}),
    (
        "POST",
        "/api/v1/simulate",
        {"triggerSpec": {"type": "app_event"}, "graph": GRAPH, "event": {"event": "a", "contact": {"externalId": "a"}}},
    ),
]


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


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a session that has just ended
            os.kill(pid, number)


def kill(postgres: EmbeddedPostgres) -> None:
    signal_all(pids(postgres), signal.SIGKILL)


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
    signal_all(stopped, signal.SIGSTOP)
    await until(lambda: load.count("later") >= 20)
    signal_all(stopped, signal.SIGCONT)
    enough = load.count("new") + 200
    await until(lambda: load.count("new") >= enough, seconds=5)
    load.stop()
    await running
    await load.settle()
    assert load.slowest < SOON_S
    await check_promises(installation.dsn, load)


async def test_b11_every_route_has_an_answer_while_postgres_is_frozen(
    killable_postgres: EmbeddedPostgres, installation: Installation
) -> None:
    await installation.organization()
    key = await create(installation.dsn, installation.keyring, "demo", "workbench", WORKBENCH)
    api = installation.start_api()
    frozen: list[int] = []
    slow = {"sql": "SELECT count(*) FROM generate_series(1, 100000000)"}
    async with httpx.AsyncClient(base_url=api.url, headers={"authorization": f"Bearer {key}"}) as client:

        async def send(method: str, path: str, body: object) -> tuple[str, int]:
            started = time.monotonic()
            response = await client.request(method, path, json=body, timeout=90)
            limit = READY_SOON_S if path == "/readyz" else ANSWERED_S
            assert time.monotonic() - started < limit, path
            return path, response.status_code

        async def send_all() -> list[tuple[str, int]]:
            return await asyncio.gather(*[send(*request) for request in ROUTES])

        assert await send_all() == [(path, 200) for _, path, _ in ROUTES]
        running = asyncio.create_task(send("POST", "/api/v1/sql", slow))
        readers = "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'wb_reader_%%'"
        while await query(installation.dsn, readers) == [(0,)]:
            await asyncio.sleep(0.01)
        try:
            frozen += pids(killable_postgres)
            signal_all(frozen, signal.SIGSTOP)
            for _ in range(2):  # with connections and a verified key from before, then without
                assert await send_all() == [(path, 503) for _, path, _ in ROUTES]
            assert await running == ("/api/v1/sql", 503)
        finally:
            signal_all(frozen, signal.SIGCONT)
        async with asyncio.timeout(30):
            while await send_all() != [(path, 200) for _, path, _ in ROUTES]:
                pass


async def test_f14_a_process_that_started_before_its_database_stops_with_a_foreign_secret(
    killable_postgres: EmbeddedPostgres, installation: Installation
) -> None:
    await installation.organization()
    installation.start_api()  # with the secret of the database
    await asyncio.to_thread(killable_postgres.stop)
    engine = installation.start_engine(WORKBENCH_SECRET="a foreign secret of these tests")
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(engine.wait, 3)  # it waits for its database
    assert engine.poll() is None
    await asyncio.to_thread(killable_postgres.start)
    assert await asyncio.to_thread(engine.wait, 60) == 1


async def test_b12_backends_terminated_at_random_cost_at_most_a_retry(installation: Installation) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api()])
    running = asyncio.create_task(load.run())
    chance = Random(12)
    others = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'"""
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
