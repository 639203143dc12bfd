"""An unexpected error is a 503 in the common shape and one log line without any content of the request."""

import asyncio
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from api.auth.key_format import RANDOM_BYTES, make
from api.embedded import Server
from api.store.database import Database, libpq_dsn
from tests.routes.conftest import Service, serving
from tests.servers import database_dsn

CANARY = "canary-7d1f"
EVENT = {"event": "deposit", "contact": {"externalId": CANARY}, "payload": {"secret": CANARY}, "idempotencyKey": "k1"}
WENT_WRONG = {"error": "internal error; the request id finds the cause in the server's log"}
KEEP_KEY = {
    "error": "ingestion temporarily unavailable, retry with the same idempotencyKey",
    "code": "INGEST_UNAVAILABLE",
}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    """A server for this test alone, so that it can break the database."""
    async with serving(database_url) as started:
        yield started


async def test_a_bug_in_a_route_is_a_503_and_a_log_line(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    acme = await service.organization()
    await acme.post(EVENT)
    await service.rows("ALTER TABLE events RENAME COLUMN event TO renamed")
    status, body = await acme.get("/events/catalog")
    request_id = body.pop("requestId")
    assert (status, body) == (503, WENT_WRONG | {"doc": "/docs#catalog.list_events"})
    (record,) = [record for record in caplog.records if record.message == "request_failed"]
    assert (record.levelno, vars(record)["request_id"]) == (logging.ERROR, request_id)
    assert record.exc_info is not None


async def test_a_bug_in_the_writer_stores_nothing_and_names_no_cause(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    acme = await service.organization()
    await service.rows("ALTER TABLE events RENAME COLUMN payload TO renamed")
    status, answer = await acme.post(EVENT)
    del answer["requestId"]
    assert (status, answer) == (503, KEEP_KEY | {"doc": "/docs#events.ingest_one"})
    # docs/contract.md 4.2: a batch is 202 with one result per event, also when all of them fail
    error = f"{KEEP_KEY['code']}: {KEEP_KEY['error']}"
    assert await acme.post_batch(EVENT, EVENT) == [{"accepted": False, "deduplicated": False, "error": error}] * 2
    assert {record.message for record in caplog.records} >= {"write_failed"}
    assert CANARY not in caplog.text
    await service.rows("ALTER TABLE events RENAME COLUMN renamed TO payload")
    assert (await acme.post(EVENT))[1]["deduplicated"] is False  # the failures stored nothing


async def test_a_value_that_postgres_refuses_is_a_400_without_its_text(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    acme = await service.organization()
    await service.rows("ALTER TABLE events ADD CONSTRAINT none CHECK (payload ->> 'secret' IS NULL)")
    status, body = await acme.post(EVENT)
    assert (status, body["error"]) == (400, "cannot be stored")
    (item, good) = await acme.post_batch(EVENT, EVENT | {"payload": {}, "idempotencyKey": "k2"})
    assert (item["error"], good["accepted"]) == ("cannot be stored", True)
    logged = [vars(record) for record in caplog.records if record.message == "rejected_by_database"]
    assert {line["reason"].rpartition(" ")[2] for line in logged} == {"none"}
    assert CANARY not in caplog.text + repr(logged)


async def test_health_distinguishes_the_process_from_its_dependencies(service: Service) -> None:
    root = str(service.client.base_url).replace("/api/v1/", "")
    alive, ready = [await service.client.get(f"{root}/{path}") for path in ("healthz", "readyz")]
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    expected = {
        "status": "ready",
        "database": "ok",
        "writer": "ok",
        "engine": "not running",
        "engineLagSeconds": None,
        "chains": {},
    }
    assert (ready.status_code, ready.json()) == (200, expected)


# What `/readyz` uses of Citus: worker 1 answers, and a connection to a frozen one ends with the timeout of Citus.
_LIKE_CITUS = """
CREATE TABLE pg_dist_node AS SELECT id AS nodeid, id::text AS nodename, id AS nodeport FROM generate_series(1, {}) id;
CREATE TABLE asked (at timestamptz);
CREATE FUNCTION run_command_on_workers(command text)
RETURNS TABLE (nodename text, nodeport integer, success boolean, result text) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO asked VALUES (clock_timestamp());
    PERFORM pg_sleep_for(coalesce(current_setting('citus.node_connection_timeout', true), '30 s')::interval)
    FROM pg_dist_node WHERE nodeid > 1;
    RETURN QUERY SELECT n.nodename, n.nodeport, nodeid = 1, '' FROM pg_dist_node n;
END $$;
"""


@pytest.mark.plain
@pytest.mark.parametrize(
    ("workers", "status", "reads"),
    [
        (2, "Citus workers away: 2", 1),
        (3, "Citus workers away: 2, 3", 1),
        (5, "Citus workers do not answer in time", 0),  # rolled back
    ],
)
async def test_readyz_names_frozen_citus_workers_and_reads_their_status_once_for_many_requests(
    postgres: Server, service: Service, database_url: str, workers: int, status: str, reads: int
) -> None:
    with psycopg.connect(libpq_dsn(database_url), options="-c search_path=workbench") as owner:
        owner.execute(_LIKE_CITUS.format(workers).encode())
    with psycopg.connect(database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:])) as admin:
        admin.execute(  # by this row the service recognizes Citus, when it connects
            "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)"
            " SELECT 1000000, 'citus', extowner, extnamespace, false, '13' FROM pg_extension LIMIT 1"
        )
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    root = str(service.client.base_url).replace("/api/v1/", "")
    async with asyncio.timeout(2):
        answers = await asyncio.gather(*(service.client.get(f"{root}/readyz") for _ in range(20)))
    assert {(answer.status_code, answer.json()["database"]) for answer in answers} == {(200, status)}
    with psycopg.connect(libpq_dsn(database_url)) as owner:
        assert owner.execute("SELECT count(*) FROM workbench.asked").fetchone() == (reads,)


async def test_without_a_database_the_process_lives_but_is_not_ready() -> None:
    async with serving("postgresql://nobody:secret@127.0.0.1:1/nothing") as lonely:
        root = str(lonely.client.base_url).replace("/api/v1/", "")
        alive, ready = [await lonely.client.get(f"{root}/{path}") for path in ("healthz", "readyz")]
        key = make("live", "", bytes(RANDOM_BYTES))
        response = await lonely.client.post("/events", json=EVENT, headers={"authorization": f"Bearer {key}"})
    assert alive.status_code == 200
    expected = {"status": "unavailable", "database": "away", "writer": "waiting", "engine": "unknown"}
    assert (ready.status_code, ready.json()) == (503, expected)
    assert (response.status_code, response.json()["code"]) == (503, "INGEST_UNAVAILABLE")


async def test_a_connection_that_ended_while_idle_costs_no_request(service: Service, database_url: str) -> None:
    acme = await service.organization()
    assert (await acme.post(EVENT))[0] == 202
    nemesis = Database(database_url, size=1)
    await nemesis.open()
    for _ in range(3):
        async with nemesis.transaction() as tx:
            await tx.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
            )
        assert (await acme.post(EVENT))[0] == 202
        assert (await acme.get("/events/catalog"))[0] == 200
    await nemesis.close()


async def test_while_postgres_hangs_requests_are_answered_within_two_seconds(service: Service) -> None:
    acme = await service.organization()
    await acme.post(EVENT)
    events = [EVENT | {"idempotencyKey": str(number)} for number in range(60)]
    async with await psycopg.AsyncConnection.connect(libpq_dsn(service.dsn)) as blocker:
        await blocker.execute("LOCK TABLE workbench.events IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(3):  # two seconds, and what the clients in this process add
            answers = await asyncio.gather(acme.get("/events/catalog"), *map(acme.post, events))
    assert {status for status, _ in answers} == {503}
    assert [body.get("code") for _, body in answers] == [None, *["INGEST_UNAVAILABLE"] * 60]  # only ingest has a code
    async with asyncio.timeout(5):
        while {status for status, _ in await asyncio.gather(*map(acme.post, events))} != {202}:
            pass
    ((stored, keys),) = await acme.rows("count(*), count(DISTINCT idempotency_key)", "events", "1")
    assert stored == keys == 61


@pytest.mark.plain
async def test_a_client_that_does_not_wait_is_counted_as_gone(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    acme = await service.organization()
    await acme.get("/events/catalog")
    key = await acme.key()
    async with await psycopg.AsyncConnection.connect(libpq_dsn(service.dsn)) as blocker:
        await blocker.execute("LOCK TABLE workbench.event_counting, workbench.events IN ACCESS EXCLUSIVE MODE")
        await service.send_and_disconnect(
            f"GET /api/v1/events/catalog HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\r\n".encode()
        )
        async with asyncio.timeout(5):
            answers = service.services.access_log.answers
            while not (failures := {labels[2]: count for labels, count in answers if labels[2] > "400"}):  # noqa: ASYNC110  no event to await
                await asyncio.sleep(0.02)
    assert failures == {"499": 1}
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
