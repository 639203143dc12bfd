"""A query that exceeds a limit is stopped with a message that names the limit, and leaves nothing behind."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import polars
import psycopg
import pytest
from psycopg import sql

from api.auth import keys
from api.query.formats import FORMATS, stream
from api.query.gateway import AnalystQuery, Gateway
from api.query.limits import ConcurrencyLimits
from api.store.analyst import (
    QueryLimits,
    QueryMemoryError,
    QueryTimeoutError,
    ResultTooLargeError,
    StatementError,
    TooManyQueriesError,
    open_cursor,
    private_bytes,
)
from api.store.database import DatabaseUnavailableError
from api.store.sql_roles import Readers, stop_backend
from tests.query.conftest import wait_for_running_query

ARROW = "application/vnd.apache.arrow.stream"
ENDLESS = "SELECT count(*) FROM " + ", ".join(f"generate_series(1, 1000) s{n}" for n in range(4))  # no temporary files


async def ask(gateway: Gateway, text: str, org_id: int = 1) -> bytes:
    async with gateway.run(AnalystQuery(org_id, text, None, clear_emails=False)) as answer:
        return b"".join([piece async for piece in stream(answer, FORMATS["text/csv"])])


@pytest.mark.parametrize("limit", [1, 16, 17, 5_000])  # the first batch has 16 rows
async def test_an_answer_ends_after_its_limit_of_rows(database, keyring, org_ids, limit):
    query = AnalystQuery(1, "SELECT n FROM generate_series(1, 50000) AS n", None, clear_emails=False)
    for mime, read in (("text/csv", polars.read_csv), (ARROW, polars.read_ipc_stream)):
        async with Gateway(database, keyring).run(query) as answer:
            content = b"".join([piece async for piece in stream(answer, FORMATS[mime], limit)])
        assert read(content)["n"].cast(polars.Int64).to_list() == list(range(1, limit + 1))


def backends(dsn: str, role: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        statement = "SELECT pid::text FROM pg_stat_activity WHERE usename = %s AND datname = current_database()"
        return [pid for (pid,) in connection.execute(statement, (role,))]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the server's list of connections gives no signal
            await asyncio.sleep(0.02)


async def test_a_slow_query_is_stopped_by_the_server(database, keyring, org_ids, module_database):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=0.2))
    with pytest.raises(QueryTimeoutError, match=r"the query took longer than 0.2 s"):
        await ask(gateway, ENDLESS)
    await until(lambda: not backends(module_database, keyring.reader_role(1)))


async def test_a_query_that_the_server_does_not_stop_is_stopped_by_the_gateway(database, keyring, org_ids):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=600, watch_seconds=0.1))
    with pytest.raises(QueryTimeoutError, match=r"the query took longer than 0.1 s"):
        await ask(gateway, ENDLESS)


async def test_a_query_with_a_terminated_connection_has_not_hit_a_limit(
    database, keyring, org_ids, postgres, module_database
):
    asking = asyncio.create_task(ask(Gateway(database, keyring), ENDLESS, org_id=2))
    role = keyring.reader_role(2)
    await wait_for_running_query(postgres, module_database)
    async with database.transaction() as tx:
        assert await stop_backend(tx, int(backends(module_database, role)[0]))
    with pytest.raises(DatabaseUnavailableError, match="the database ended the connection"):
        await asking


# Each takes much longer than the limit; a join of a hundred tables in planning alone.
BOMBS = [
    "SELECT count(*) FROM generate_series(1, 1000000000000) n WHERE n < 0",
    r"SELECT count(*) FROM generate_series(1, 100000000) n WHERE repeat('ab', 100 + n % 7) ~ '^(.*)(.*)(.*)x\1\2\3$'",
    "SELECT count(*) FROM contacts c0 " + " ".join(f"JOIN generate_series(1, 9) g{n} ON g{n} > 0" for n in range(100)),
]


@pytest.mark.parametrize("statement", BOMBS)
async def test_an_expensive_query_is_stopped_while_others_are_answered(database, keyring, org_ids, statement):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=0.3))
    bomb = asyncio.create_task(ask(gateway, statement))
    assert await ask(Gateway(database, keyring), "SELECT event FROM app_events", org_id=2) == b"event\r\ncanary_b\r\n"
    with pytest.raises((QueryTimeoutError, StatementError)) as stopped:
        await bomb
    assert isinstance(stopped.value, QueryTimeoutError) or stopped.value.sqlstate == "53400"  # temporary files


async def test_an_endless_result_is_stopped(database, keyring, org_ids):
    gateway = Gateway(database, keyring, QueryLimits(answer_seconds=0.2))
    with pytest.raises(QueryTimeoutError, match=r"the answer took longer than 0.2 s"):
        await ask(gateway, "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n) SELECT x FROM n")


async def test_a_slow_client_gets_every_row_in_order_without_a_timeout(database, keyring, org_ids):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=0.5, watch_seconds=0.5))
    statement = "SELECT n, repeat('a', 2000) FROM generate_series(1, 30000) n"
    numbers: list[int] = []
    async with gateway.run(AnalystQuery(1, statement, None, clear_emails=False)) as answer:
        async for batch in answer.batches():
            if 0 < len(numbers) < 3000:  # more rows than the buffers of the sockets hold
                await asyncio.sleep(0.7)
            numbers += map(int, batch.columns()[0].to_pylist())
    assert numbers == [*range(1, 30_001)]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM generate_series(1, 100000000)",
        "SELECT repeat('a', 100000000) FROM generate_series(1, 100)",
    ],
)
async def test_temporary_files_are_limited(service, postgres, keyring, statement):
    assert (await service.ann.post("SELECT 1")).status_code == 200  # creates the role
    names = [*map(sql.Identifier, (keyring.reader_role(service.ann.org_id), urlsplit(service.dsn).path[1:]))]
    with psycopg.connect(postgres.admin_dsn, autocommit=True) as admin:  # any machine reaches a small limit
        admin.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} SET temp_file_limit = '8MB'").format(*names))
        response = await service.ann.post(statement)
        admin.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET temp_file_limit").format(*names))
    assert response.status_code == 400
    assert response.json()["sqlstate"] == "53400"
    assert response.json()["error"].startswith("sql: temporary file size exceeds")


async def test_rows_that_are_too_large_are_refused(database, keyring, org_ids):
    gateway = Gateway(database, keyring, QueryLimits(fetch_bytes=1_000_000))
    with pytest.raises(ResultTooLargeError, match="are larger than 1000000 bytes in total"):
        await ask(gateway, "SELECT repeat('a', 2000000)")


async def test_a_timeout_is_408(service, keyring, database):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=0.1))
    before = service.app.ctx.services
    service.app.ctx.services = msgspec.structs.replace(before, gateway=gateway)
    response = await service.ann.post(ENDLESS)
    service.app.ctx.services = before
    assert response.status_code == 408
    assert response.json()["error"] == "sql: the query took longer than 0.1 s"


has_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of processes from /proc")


@pytest.mark.plain
@has_proc
async def test_a_query_that_needs_too_much_memory_is_stopped(database, keyring, org_ids, module_database):
    gateway = Gateway(database, keyring, QueryLimits(memory_bytes=100_000_000))
    advice = "the query needs more than 0.1 GB of memory; aggregate fewer rows, or read them with stream=True"
    with pytest.raises(QueryMemoryError, match=advice):
        await ask(gateway, "SELECT length(array_agg(repeat('x', 1000))::text) FROM generate_series(1, 10000000)")
    await until(lambda: not backends(module_database, keyring.reader_role(1)))
    assert await ask(gateway, "SELECT length(repeat('x', 10000000)) AS n") == b"n\r\n10000000\r\n"


@pytest.mark.plain
@has_proc
async def test_a_step_that_ends_before_its_cancel_request_arrives_is_refused_for_its_own_reason(
    database, keyring, org_ids
):
    reader = await Readers(database, keyring).of(1)
    async with open_cursor(database, reader, QueryLimits(memory_bytes=0)) as cursor:
        with pytest.raises(QueryMemoryError), cursor._step():
            await asyncio.sleep(0.5)  # nothing runs that the request could cancel


@has_proc
def test_the_memory_of_a_process_of_another_role_is_not_that_of_the_backend():
    name = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    assert private_bytes(os.getpid(), "wb_reader_0") == 0
    assert private_bytes(os.getpid(), name) > 10_000_000


async def test_a_fourth_query_of_an_organization_waits_and_is_refused(database, keyring, org_ids):
    gateway = Gateway(database, keyring, QueryLimits(step_seconds=2), ConcurrencyLimits(wait_seconds=0.1))
    running = [asyncio.create_task(ask(gateway, ENDLESS)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyQueriesError, match="other queries are still running"):
        await ask(gateway, "SELECT 1")
    assert await ask(gateway, "SELECT 1 AS one", org_id=2) == b"one\r\n1\r\n"
    for task in running:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*running, return_exceptions=True)
    )


async def test_fifty_heavy_queries_hold_up_neither_ingest_nor_another_organization(service, keyring, database):
    before = service.app.ctx.services
    gateway = Gateway(
        database, keyring, QueryLimits(step_seconds=600, watch_seconds=600), ConcurrencyLimits(wait_seconds=0.5)
    )
    service.app.ctx.services = msgspec.structs.replace(before, gateway=gateway)
    live = {"Authorization": f"Bearer {await keys.create(service.dsn, keyring, 'b', 'live')}"}
    heavy = [asyncio.create_task(service.ann.post(ENDLESS)) for _ in range(50)]
    await until(lambda: bool(backends(service.dsn, keyring.reader_role(service.ann.org_id))))
    for number in range(10):
        event = {"event": "beside", "contact": {"externalId": "beside"}, "idempotencyKey": f"beside {number}"}
        assert (await service.ben.client.post("/api/v1/events", json=event, headers=live)).status_code == 202
    assert await service.ben.rows("SELECT count(*) FROM app_events WHERE event = 'beside'") == [[10]]
    await until(lambda: sum(task.done() for task in heavy) == 47)
    assert len(backends(service.dsn, keyring.reader_role(service.ann.org_id))) == 3
    refused = {task.result().status_code for task in heavy if task.done()}
    service.app.ctx.services = before
    for task in heavy:
        task.cancel()
    await until(lambda: not backends(service.dsn, keyring.reader_role(service.ann.org_id)))
    assert refused == {429}


async def test_quick_queries_follow_each_other_closely(database, keyring, org_ids):
    # Postgres counts a closed connection for a moment longer, so these can exceed the role's limit.
    gateway = Gateway(database, keyring)
    answers = await asyncio.gather(*(ask(gateway, "SELECT 1 AS one") for _ in range(40)))
    assert set(answers) == {b"one\r\n1\r\n"}


async def test_a_query_is_cancelled_when_its_client_disconnects(service, keyring):
    body = {
        "sql": "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n) SELECT x, repeat('x', 1000) FROM n"
    }
    headers = {"Authorization": f"Bearer {service.ben.key}"}
    role = keyring.reader_role(service.ben.org_id)
    async with service.ben.client.stream("POST", "/api/v1/sql", json=body, headers=headers) as response:
        await anext(response.aiter_bytes())
        assert backends(service.dsn, role)
    await until(lambda: not backends(service.dsn, role))


async def test_a_query_is_cancelled_when_its_client_disconnects_before_the_first_row(service, keyring):
    role = keyring.reader_role(service.ben.org_id)
    asking = asyncio.create_task(service.ben.post(ENDLESS))
    await until(lambda: bool(backends(service.dsn, role)))
    asking.cancel()
    await until(lambda: not backends(service.dsn, role))


async def test_a_half_closed_client_gets_the_rows_of_a_slow_query(service):
    three_seconds = ENDLESS.replace("count(*)", "'ended'") + " WHERE clock_timestamp() > now() + '3 s' LIMIT 1"
    body = json.dumps({"sql": three_seconds}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", service.ben.client.base_url.port)
    writer.write(b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % service.ben.key.encode())
    writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    writer.write_eof()
    received = await reader.read()
    writer.close()
    assert b'[["ended"]' in received.rpartition(b"HTTP/1.1 200 OK")[2]


async def test_a_truncated_answer_does_not_look_complete(service):
    statement = "SELECT 1 / (5000 - x) FROM generate_series(1, 10000) x"
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await service.ann.post(statement)


async def test_a_hundred_thousand_rows_stream(service):
    statement = (
        "SELECT x, md5(x::text) AS hash, now() AS at, jsonb_build_object('x', x) AS o FROM generate_series(1, 100000) x"
    )
    frame = polars.read_ipc_stream((await service.ann.post(statement, accept=ARROW)).content)
    assert frame.height == 100_000
    assert frame["x"].to_list() == list(range(1, 100_001))


async def test_other_requests_are_served_while_rows_are_read(database, keyring, org_ids):
    turns, rows = 0, 20_000

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            time.sleep(0.005)  # noqa: ASYNC251 - meanwhile Postgres sends more rows than are read in one turn

    question = AnalystQuery(1, f"SELECT x, x, x, x FROM generate_series(1, {rows}) x", None, clear_emails=False)
    async with Gateway(database, keyring).run(question) as answer:
        other = asyncio.create_task(others())
        assert sum([batch.rows async for batch in answer.batches()]) == rows
        other.cancel()
    assert turns >= rows // 512
