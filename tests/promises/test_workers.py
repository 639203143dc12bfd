"""Several API processes behind one port: clients notice no interruption when one dies, hangs or is replaced."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from api.store.database import libpq_dsn
from tests.installation import Api, Installation
from tests.promises.conftest import Load, check_promises, query, until
from tests.promises.http_client import HttpConnection

EVENTS = "/api/v1/events"
PAUSE = 0.005  # seconds between requests; processes that start need the processor


def event(number: int) -> dict[str, object]:
    return {"event": "deposit", "contact": {"externalId": f"u{number % 7}"}, "idempotencyKey": f"k{number}"}


def workers(api: Api) -> list[int]:
    """Return the processes behind the port; while one of them ends there may be one more."""
    pid = api.process.pid
    return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def restart_workers(api: Api) -> None:
    """Order a rolling restart and wait until it is over."""
    old = workers(api)
    api.process.send_signal(signal.SIGHUP)
    await until(lambda: all(map(has_ended, old)) and len(workers(api)) == len(old), seconds=40)


class Sender:
    """Sends one event after another on one connection; `fresh`: each on a new connection."""

    def __init__(self, api: Api, key: str, first: int, *, fresh: bool) -> None:
        self.sent = 0
        self._line = HttpConnection(api.url, key)
        self._first = first
        self._fresh = fresh
        self._running = True

    def stop(self) -> None:
        self._running = False

    async def run(self) -> set[int]:
        """Return the statuses of all answers."""
        statuses = set()
        while self._running:
            statuses.add((await self._line.post(EVENTS, event(self._first + self.sent))).status)
            self.sent += 1
            if self._fresh:
                await self._line.close()
            await asyncio.sleep(PAUSE)
        await self._line.close()
        return statuses


async def test_b17_a_rolling_restart_under_load_rejects_no_request_and_loses_no_event(
    installation: Installation,
) -> None:
    keys = await installation.organization()
    api = installation.start_api("--workers", "2")
    senders = [Sender(api, keys["live"], 1_000_000 * number, fresh=number == 0) for number in range(5)]
    running = [asyncio.create_task(sender.run()) for sender in senders]
    await until(lambda: all(sender.sent >= 10 for sender in senders))
    await restart_workers(api)
    enough = [sender.sent + 5 for sender in senders]
    await until(lambda: all(sender.sent >= least for sender, least in zip(senders, enough, strict=True)))
    for sender in senders:
        sender.stop()
    assert await asyncio.gather(*running) == [{202}] * 5
    assert await query(installation.dsn, "SELECT count(*) FROM events") == [(sum(sender.sent for sender in senders),)]


async def test_b17_requests_under_way_are_answered_before_the_processes_exit(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api("--workers", "2")
    pids = workers(api)
    lines = [HttpConnection(api.url, keys["live"]) for _ in range(30)]
    async with stuck_writers(installation):
        begun = [asyncio.create_task(line.post(EVENTS, event(number))) for number, line in enumerate(lines)]
        await until_a_writer_waits(installation)
        api.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)  # it arrives while all of them wait
    answers = await asyncio.gather(*begun)
    assert [answer.status for answer in answers] == [202] * 30
    assert await asyncio.to_thread(api.process.wait, 20) == 0
    assert all(map(has_ended, pids))
    assert await query(installation.dsn, "SELECT count(*) FROM events") == [(30,)]


async def test_b17_an_idle_connection_gets_one_more_answer_with_connection_close(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api()
    async with HttpConnection(api.url, keys["live"]) as line:
        assert (await line.post(EVENTS, event(1))).headers["connection"] == "keep-alive"
        api.process.send_signal(signal.SIGTERM)
        with suppress(ConnectionError):
            while await get_health_status(api):
                pass
        last = await line.post(EVENTS, event(2))
    assert (last.status, last.headers["connection"]) == (202, "close")
    assert await asyncio.to_thread(api.process.wait, 10) == 0


async def test_b3_a_killed_worker_is_replaced_while_the_others_serve(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api("--workers", "2")
    load = Load(keys["live"], [api])
    running = asyncio.create_task(load.run())
    for _ in range(2):
        enough = load.count("new") + 100
        await until(lambda enough=enough: load.count("new") >= enough)  # type: ignore[misc]
        victim = workers(api)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda victim=victim: victim not in workers(api) and len(workers(api)) == 2)  # type: ignore[misc]
        assert [await get_health_status(api) for _ in range(10)] == [200] * 10
    load.stop()
    await running
    await load.settle()
    await check_promises(installation.dsn, load)


async def test_connections_of_a_worker_that_hangs_are_served_by_the_others(installation: Installation) -> None:
    api = installation.start_api("--workers", "2")
    hanging = workers(api)[0]
    os.kill(hanging, signal.SIGSTOP)
    try:
        async with asyncio.timeout(10):
            assert [await get_health_status(api) for _ in range(20)] == [200] * 20
    finally:
        os.kill(hanging, signal.SIGCONT)


async def test_no_worker_outlives_the_process_that_watches_it(installation: Installation) -> None:
    api = installation.start_api("--workers", "2")
    pids = workers(api)
    api.process.kill()
    await until(lambda: all(map(has_ended, pids)))
    with pytest.raises(ConnectionRefusedError):
        await get_health_status(api)


async def test_the_rate_is_that_of_all_workers_together_and_outlives_them(installation: Installation) -> None:
    keys = await installation.organization()
    api = installation.start_api("--workers", "2", WORKBENCH_INGEST_RATE="0.001", WORKBENCH_INGEST_BURST="40")
    before = [await send(api, keys["live"], number) for number in range(30)]
    await restart_workers(api)
    after = [await send(api, keys["live"], number) for number in range(30, 60)]
    assert before + after == [202] * 40 + [429] * 20


async def get_health_status(api: Api) -> int:
    """Return the status of a request on a new connection."""
    async with HttpConnection(api.url) as line:
        return (await line.get("/healthz")).status


async def send(api: Api, key: str, number: int) -> int:
    """Send an event on a new connection; return the status."""
    async with HttpConnection(api.url, key) as line:
        return (await line.post(EVENTS, event(number))).status


@asynccontextmanager
async def stuck_writers(installation: Installation) -> AsyncIterator[None]:
    """Block all writes of events until the block ends."""
    async with await psycopg.AsyncConnection.connect(libpq_dsn(installation.dsn)) as blocker:
        await blocker.execute("LOCK TABLE workbench.events IN ACCESS EXCLUSIVE MODE")
        yield


async def until_a_writer_waits(installation: Installation) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not await query(installation.dsn, waiting):
            await asyncio.sleep(0.01)
