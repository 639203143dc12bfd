"""A standby answers analysts' queries with data as new as the request; the primary never takes its place."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest

from api.app import create_app
from api.auth import keys
from api.cli.doctor import Finding, run_checks
from api.clock import token
from api.crypto import Keyring
from api.settings import Settings
from api.store import analyst
from api.store.database import libpq_dsn
from api.store.migrate import migrate
from tests.in_process import served
from tests.query.conftest import SECRET, Analyst
from tests.query.standby import Pair, pair
from tests.running import free_port

COUNT = "SELECT count(*) FROM app_events"
LONG = "SELECT count(*) FROM app_events, generate_series(1, 6000000)"


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with pair() as both:
        asyncio.run(migrate(both.primary.dsn, admin_dsn=both.primary.admin_dsn))
        yield both


class Installation:
    """An API with a standby; `ann` is an analyst of the organization that `send` sends events of."""

    def __init__(self, servers: Pair, client: httpx.AsyncClient, org_id: int, key: str, live: str) -> None:
        self.servers, self.client, self.ann = servers, client, Analyst(org_id, key, client)
        self._live = {"Authorization": f"Bearer {live}"}

    async def send(self, number: int) -> None:
        event = {"event": "deposit", "contact": {"externalId": f"u{number}"}}
        assert (await self.client.post("/api/v1/events", json=event, headers=self._live)).status_code == 202

    async def refusal(self, text: str = COUNT) -> tuple[int, str]:
        answer = await self.ann.post(text)
        return answer.status_code, answer.json()["error"]

    async def watermark(self) -> str:
        """Return the watermark of a result; there is none while another transaction is open on the primary."""
        async with asyncio.timeout(20):
            while (mark := (await self.ann.post(COUNT)).headers.get("Watermark")) is None:
                pass
        return mark

    async def lock_events(self) -> None:
        """Lock events on the primary, which makes the standby cancel queries that read them."""
        async with await psycopg.AsyncConnection.connect(libpq_dsn(self.servers.primary.dsn)) as connection:
            await connection.execute("LOCK TABLE workbench.events IN ACCESS EXCLUSIVE MODE")
            await connection.commit()


@asynccontextmanager
async def installation(servers: Pair, read_url: str | None = None) -> AsyncIterator[Installation]:
    dsn = servers.primary.dsn
    settings = Settings(ingest_rate=0, read_url=read_url or servers.standby.dsn(dsn))
    name, keyring = f"org-{token(4).hex()}", Keyring(SECRET)
    org_id = await keys.create_org(dsn, name)
    key = await keys.create(dsn, keyring, name, "workbench", ["sql:read", "events:read"])
    live = await keys.create(dsn, keyring, name, "live", None)
    async with (
        served(create_app(settings, dsn, SECRET, name=f"replica-{token(4).hex()}")) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield Installation(servers, client, org_id, key, live)


async def test_a_result_includes_every_event_accepted_before_the_query(servers: Pair) -> None:
    async with installation(servers) as own:  # the login role has just been made, too
        for number in range(10):
            await own.send(number)
            assert await own.ann.rows(COUNT) == [[number + 1]]


async def test_a_standby_that_does_not_replay_is_not_queried(servers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyst, "_CATCH_UP_S", 0.3)
    async with installation(servers) as own:
        await own.send(1)
        assert await own.ann.rows(COUNT) == [[1]]
        servers.standby.execute("SELECT pg_wal_replay_pause()")
        try:
            await own.send(2)
            status, error = await own.refusal()
        finally:
            servers.standby.execute("SELECT pg_wal_replay_resume()")
        assert (status, error.startswith("the read replica is more than 0.3 s behind; its newest")) == (503, True)
        assert await own.ann.rows(COUNT) == [[2]]


async def test_a_watermark_of_a_standby_repeats_the_result(servers: Pair) -> None:
    async with installation(servers) as own:
        await own.send(1)
        mark = await own.watermark()
        await own.send(2)
        headers = {"Authorization": f"Bearer {own.ann.key}"}
        again = await own.client.post("/api/v1/sql", json={"sql": COUNT, "asOf": mark}, headers=headers)
        assert (again.json()["rows"], await own.ann.rows(COUNT)) == ([[1]], [[2]])


async def test_no_watermark_is_returned_where_it_would_not_be_exact(servers: Pair) -> None:
    async with (
        installation(servers) as own,
        await psycopg.AsyncConnection.connect(libpq_dsn(servers.primary.dsn)) as other,
    ):
        await own.send(1)
        await other.execute("SELECT pg_current_xact_id()")  # stays open while later transactions commit
        await other.execute("CREATE TABLE workbench.held (id integer)")
        await own.send(2)
        answer = await own.ann.post(COUNT)
        assert (answer.json()["rows"], "Watermark" in answer.headers) == ([[2]], False)
        await other.rollback()
        assert await own.watermark()


async def test_a_query_cancelled_by_replay_is_retried_and_then_refused(servers: Pair) -> None:
    async with installation(servers) as own:
        await own.send(1)
        query = asyncio.create_task(own.ann.rows(LONG))
        await reading(servers)
        await own.lock_events()
        assert await query == [[6_000_000]]
        assert servers.standby.execute("SELECT sum(confl_lock) > 0 FROM pg_stat_database_conflicts") == [(True,)]
        refused = asyncio.create_task(own.refusal(LONG))
        while not refused.done():
            await own.lock_events()
            await asyncio.sleep(0.05)
        assert await refused == (429, "the read replica had to apply changes that conflict with the query; try again")


async def reading(servers: Pair) -> None:
    """Wait until an analyst's query runs on the standby."""
    running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'FETCH%'"
    async with asyncio.timeout(20):
        while servers.standby.execute(running) == [(0,)]:  # noqa: ASYNC110  another server has no event for us
            await asyncio.sleep(0.01)


def test_doctor_reports_whether_the_standby_follows(servers: Pair) -> None:
    dsn, advice = servers.primary.dsn, "check WORKBENCH_READ_URL, and pg_stat_replication on the primary"
    assert replica_finding(dsn, servers.standby.dsn(dsn)) == Finding("ok", "the read replica is up to date")
    refusal = "WORKBENCH_READ_URL is not a standby of the server in DATABASE_URL"
    assert replica_finding(dsn, dsn) == Finding("fail", refusal, advice)


def replica_finding(dsn: str, read_url: str) -> Finding:
    """Return what doctor says about the replica. A busy machine may take longer to connect than doctor waits."""
    for _ in range(20):
        for finding in run_checks(Settings(database_url=dsn, read_url=read_url), free_port(), free_port()):
            if re.search("replica|READ_URL", finding.message) and not finding.message.endswith("try again"):
                return finding
    raise AssertionError("doctor does not reach the databases")


async def test_a_server_that_is_not_a_standby_of_the_primary_is_not_queried(servers: Pair) -> None:
    async with installation(servers, servers.primary.dsn) as own:
        assert await own.refusal() == (503, "WORKBENCH_READ_URL is not a standby of the server in DATABASE_URL")


async def test_without_its_standby_events_are_accepted_and_queries_wait(servers: Pair) -> None:
    async with installation(servers) as own:
        servers.standby.stop()
        await own.send(1)
        assert await own.refusal() == (503, "the read replica cannot be reached; try again")
