"""Nothing that was answered 202 is lost, nothing is stored twice, whatever dies when (docs/trust.md B1-B4, B17)."""

import asyncio
import signal
from collections.abc import Callable

import httpx
import psycopg
import pytest

from api.store.database import libpq_dsn
from tests.acceptance.conftest import Api, House
from tests.promises.conftest import Load, automate, check_promises, query, until

EVENT = {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1", "attributes": {"a": 1}}
TRACES = (
    "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM contacts)"
)
NEW = {"accepted": True, "deduplicated": False, "idempotencyKey": "k1"}


async def test_b1_killed_before_its_commit_an_event_has_left_no_trace(house: House) -> None:
    keys = await house.organization()
    api = house.start_api()
    async with await psycopg.AsyncConnection.connect(libpq_dsn(house.dsn)) as blocker:
        # the first of the two round trips of a batch; the second includes the commit
        await blocker.execute("LOCK TABLE workbench.idempotency_keys IN ACCESS EXCLUSIVE MODE")
        await _die_while_sending(house, keys["live"], api, "wait_event_type = 'Lock'")
    await _until_connections(house, "true", lambda number: number == 0)
    assert await query(house.dsn, TRACES) == [(0, 0, 0)]
    with house.start_api().client(keys["live"]) as backend:
        assert backend.post("/events", json=EVENT).json() == NEW
    assert await query(house.dsn, TRACES) == [(1, 1, 1)]


@pytest.mark.plain
async def test_b2_killed_after_its_commit_an_event_is_there_and_a_retry_hears_so(house: House) -> None:
    keys = await house.organization()
    await query(house.dsn, SLOW_COMMIT)
    api = house.start_api()
    await _die_while_sending(house, keys["live"], api, "query = 'COMMIT' AND wait_event = 'PgSleep'")
    await _until_connections(house, "true", lambda number: number == 0)
    assert await query(house.dsn, TRACES) == [(1, 1, 1)]
    with house.start_api().client(keys["live"]) as backend:
        assert backend.post("/events", json=EVENT).json() == NEW | {"deduplicated": True}
    assert await query(house.dsn, TRACES) == [(1, 1, 1)]


SLOW_COMMIT = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON contacts DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow()"""


async def _die_while_sending(house: House, key: str, api: Api, where: str) -> None:
    """Send the event; kill the API as soon as a connection to Postgres is in a state."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=10) as client:
        sending = asyncio.create_task(client.post(f"{api.url}/api/v1/events", json=EVENT))
        await _until_connections(house, where, lambda number: number > 0)
        api.process.kill()
        with pytest.raises(httpx.TransportError):
            await sending


async def _until_connections(house: House, where: str, enough: Callable[[int], bool]) -> None:
    """Wait until there are enough (or few enough) connections of others in a state."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity"
        f" WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() AND {where}"
    )
    async with asyncio.timeout(10):
        while not enough((await query(house.dsn, statement))[0][0]):
            await asyncio.sleep(0.01)


async def test_b3_b4_apis_killed_under_load_lose_and_double_nothing(house: House) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api(), house.start_api()])
    automate(load.apis[0], keys["workbench"])
    running = asyncio.create_task(load.run())
    for victim in (0, 1):
        enough = load.count("new") + 150
        await until(lambda enough=enough: load.count("new") >= enough)  # type: ignore[misc]
        load.apis[victim].process.kill()
        load.apis[victim] = await asyncio.to_thread(house.start_api)
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    await load.settle()
    assert load.count("unknown") > 0
    await check_promises(house.dsn, load, automations=1)


async def test_b17_a_stopping_api_answers_what_it_has_begun(house: House) -> None:
    keys = await house.organization()
    api = house.start_api()
    async with (
        await psycopg.AsyncConnection.connect(libpq_dsn(house.dsn)) as blocker,
        httpx.AsyncClient(headers={"authorization": f"Bearer {keys['live']}"}, timeout=10) as client,
    ):
        await blocker.execute("LOCK TABLE workbench.events IN ACCESS EXCLUSIVE MODE")
        begun = [
            asyncio.create_task(client.post(f"{api.url}/api/v1/events", json=EVENT | {"idempotencyKey": f"k{number}"}))
            for number in range(30)
        ]
        await _until_connections(house, "wait_event_type = 'Lock'", lambda number: number > 0)
        await asyncio.sleep(0.2)  # the others wait behind it
        api.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)  # it arrives while all of them wait
        await blocker.rollback()
        answers = await asyncio.gather(*begun)
    assert [answer.status_code for answer in answers] == [202] * 30
    assert await asyncio.to_thread(api.process.wait, 20) == 0
    assert await query(house.dsn, TRACES) == [(30, 30, 1)]


async def test_b17_an_api_stopped_under_load_exits_cleanly_and_loses_nothing(house: House) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api(), house.start_api()])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 200)
    leaving = load.apis.pop(0)
    leaving.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(leaving.process.wait, 10) == 0  # no idle connection holds it up
    load.stop()
    await running
    await load.settle()
    await check_promises(house.dsn, load)
