"""No event that was answered with 202 is lost or stored twice, whenever a process dies (docs/trust.md B1-B4, B17)."""

import asyncio
import signal
from collections.abc import Callable

import httpx
import psycopg
import pytest

from api.store.database import libpq_dsn
from tests.installation import Api, Installation
from tests.promises.conftest import Load, automate, check_promises, query, until

EVENT = {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1", "attributes": {"a": 1}}
TRACES = (
    "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM contacts)"
)
NEW = {"accepted": True, "deduplicated": False, "idempotencyKey": "k1"}


async def test_b1_a_kill_before_the_commit_leaves_no_trace_of_an_event(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api()
    async with await psycopg.AsyncConnection.connect(libpq_dsn(installation.dsn)) as blocker:
        # the first of the two round trips of a batch; the second includes the commit
        await blocker.execute("LOCK TABLE workbench.idempotency_keys IN ACCESS EXCLUSIVE MODE")
        await _kill_while_sending(installation, keys["live"], api, "wait_event_type = 'Lock'")
    await _until_connections(installation, "true", lambda number: number == 0)
    assert await query(installation.dsn, TRACES) == [(0, 0, 0)]
    with installation.start_api().client(keys["live"]) as backend:
        assert backend.post("/events", json=EVENT).json() == NEW
    assert await query(installation.dsn, TRACES) == [(1, 1, 1)]


@pytest.mark.plain
async def test_b2_an_event_survives_a_kill_after_its_commit_and_a_retry_is_a_duplicate(
    installation: Installation,
) -> None:
    keys = await installation.organization()
    await query(installation.dsn, SLOW_COMMIT)
    api = installation.start_api()
    await _kill_while_sending(installation, keys["live"], api, "query = 'COMMIT' AND wait_event = 'PgSleep'")
    await _until_connections(installation, "true", lambda number: number == 0)
    assert await query(installation.dsn, TRACES) == [(1, 1, 1)]
    with installation.start_api().client(keys["live"]) as backend:
        assert backend.post("/events", json=EVENT).json() == NEW | {"deduplicated": True}
    assert await query(installation.dsn, TRACES) == [(1, 1, 1)]


SLOW_COMMIT = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON contacts DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow()"""


async def _kill_while_sending(installation: Installation, key: str, api: Api, where: str) -> None:
    """Send the event; kill the API as soon as a connection to Postgres is in a state."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=10) as client:
        sending = asyncio.create_task(client.post(f"{api.url}/api/v1/events", json=EVENT))
        await _until_connections(installation, where, lambda number: number > 0)
        api.process.kill()
        with pytest.raises(httpx.TransportError):
            await sending


async def _until_connections(installation: Installation, where: str, enough: Callable[[int], bool]) -> None:
    """Wait until there are enough (or few enough) connections of others in a state."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity"
        f" WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() AND {where}"
    )
    async with asyncio.timeout(10):
        while not enough((await query(installation.dsn, statement))[0][0]):
            await asyncio.sleep(0.01)


async def test_b3_b4_apis_killed_under_load_lose_and_double_nothing(installation: Installation) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api(), installation.start_api()])
    automate(load.apis[0], keys["workbench"])
    running = asyncio.create_task(load.run())
    for victim in (0, 1):
        enough = load.count("new") + 150
        await until(lambda enough=enough: load.count("new") >= enough)  # type: ignore[misc]
        load.apis[victim].process.kill()
        load.apis[victim] = await asyncio.to_thread(installation.start_api)
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") > 0
    await check_promises(installation.dsn, load, automations=1)


async def test_b17_a_stopping_api_answers_requests_under_way(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api()
    async with (
        await psycopg.AsyncConnection.connect(libpq_dsn(installation.dsn)) as blocker,
        httpx.AsyncClient(headers={"authorization": f"Bearer {keys['live']}"}, timeout=10) as client,
    ):
        await blocker.execute("LOCK TABLE workbench.events IN ACCESS EXCLUSIVE MODE")
        begun = [
            asyncio.create_task(client.post(f"{api.url}/api/v1/events", json=EVENT | {"idempotencyKey": f"k{number}"}))
            for number in range(30)
        ]
        await _until_connections(installation, "wait_event_type = 'Lock'", lambda number: number > 0)
        await asyncio.sleep(0.2)  # the others wait behind it
        api.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)  # it arrives while all of them wait
        await blocker.rollback()
        answers = await asyncio.gather(*begun)
    assert [answer.status_code for answer in answers] == [202] * 30
    assert await asyncio.to_thread(api.process.wait, 20) == 0
    assert await query(installation.dsn, TRACES) == [(30, 30, 1)]


async def test_b17_an_api_stopped_under_load_exits_cleanly_and_loses_nothing(installation: Installation) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api(), installation.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    leaving = load.apis.pop(0)
    leaving.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(leaving.process.wait, 10) == 0  # idle connections do not delay the stop
    load.stop()
    await running
    await load.settle()
    await check_promises(installation.dsn, load)
