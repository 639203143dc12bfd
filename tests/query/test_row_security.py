"""Row-level security: a statement without its organization, or with another one, finds and writes nothing."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from psycopg import errors, sql
from sanic import HTTPResponse, Request
from sanic.response import json

from api.app import create_app
from api.clock import token
from api.routes.request import READ_EVENTS, require, services
from api.settings import Settings
from api.store.database import NO_ORGANIZATION, Database, RefusedDataError
from api.store.query import Call, Statement, TenantDatabase, act_for, act_for_none, run
from tests.in_process import served
from tests.query.conftest import SECRET, SqlService
from tests.servers import connect_as

FORGETFUL = "SELECT DISTINCT org_id FROM workbench.contacts"
_TABLES = """
SELECT c.relname, c.relforcerowsecurity AND c.relrowsecurity AND EXISTS (
           SELECT FROM pg_policy p
           WHERE p.polrelid = c.oid AND p.polroles = ARRAY[c.relowner] AND p.polcmd = '*' AND p.polpermissive
               AND pg_get_expr(p.polqual, c.oid) LIKE '%%org_id = %%workbench.org%%' AND p.polwithcheck IS NULL)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
WHERE c.relnamespace = 'workbench'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.relname
"""


@pytest.fixture
def tables(module_database: str, org_ids: dict[str, int]) -> list[str]:
    with connect_as(module_database, NO_ORGANIZATION) as connection:
        return [name for name, _ in connection.execute(_TABLES)]


def test_every_table_of_tenants_has_row_level_security(module_database: str) -> None:
    with connect_as(module_database, NO_ORGANIZATION) as connection:
        tables = dict(connection.execute(_TABLES))
    assert [name for name, walled in tables.items() if not walled] == []
    assert len(tables) > 30
    assert {"api_keys", "contacts", "entries", "events", "identities", "messages", "onchain_events"} <= set(tables)


def test_a_statement_without_an_organization_affects_only_its_own_rows(
    module_database: str, tables: list[str], org_ids: dict[str, int]
) -> None:
    for org, visible in [
        (NO_ORGANIZATION, set()),
        (str(org_ids["a"]), {org_ids["a"]}),
        (str(org_ids["b"]), {org_ids["b"]}),
    ]:
        with connect_as(module_database, org) as connection:
            rows = {table: connection.execute(of("SELECT org_id FROM {}", table)).fetchall() for table in tables}
            assert {org_id for ids in rows.values() for (org_id,) in ids} == visible
            assert sum(map(bool, rows.values())) >= (11 if visible else 0)
            for table, table_rows in rows.items():
                assert connection.execute(of("UPDATE {} SET org_id = org_id", table)).rowcount == len(table_rows)
                connection.execute("SAVEPOINT before")
                try:
                    assert connection.execute(of("DELETE FROM {}", table)).rowcount == len(table_rows)
                except errors.ForeignKeyViolation:  # rows that are seen, and that others refer to
                    assert table_rows
                connection.execute("ROLLBACK TO before")
            connection.rollback()


def test_no_row_can_be_written_for_another_organization(
    module_database: str, tables: list[str], org_ids: dict[str, int]
) -> None:
    with connect_as(module_database, str(org_ids["a"])) as connection:
        for table in tables:
            with (
                pytest.raises(errors.InsufficientPrivilege, match="violates row-level security"),
                connection.transaction(),
            ):
                connection.execute(of("INSERT INTO {} (org_id) VALUES (%s)", table), (org_ids["b"],))


@pytest.fixture
async def tenants(module_database: str) -> AsyncIterator[TenantDatabase]:
    database = TenantDatabase(module_database, size=1)
    await database.open()
    yield database
    await database.close()


async def seen(database: TenantDatabase, org_id: int | None) -> set[int]:
    if org_id is not None:
        act_for(org_id)
    async with database.transaction() as tx:
        return {org_id async for (org_id,) in await tx.execute(FORGETFUL)}


async def test_a_reused_connection_shows_each_organization_its_own_rows(
    tenants: TenantDatabase, org_ids: dict[str, int]
) -> None:
    a, b = org_ids["a"], org_ids["b"]
    assert await asyncio.gather(*(seen(tenants, org) for org in [a, b, None, b, None, a] * 5)) == [
        {a}, {b}, set(), {b}, set(), {a},
    ] * 5  # fmt: skip


async def test_the_organization_of_a_failed_transaction_is_not_inherited(
    tenants: TenantDatabase, org_ids: dict[str, int]
) -> None:
    act_for(org_ids["a"])
    with pytest.raises(RefusedDataError):
        async with tenants.transaction() as tx:
            await tx.execute("SELECT 1 / 0")
    with pytest.raises(errors.InsufficientPrivilege):
        async with tenants.transaction() as tx:
            await tx.execute("INSERT INTO dry_runs (org_id) VALUES (%s)", (org_ids["b"],))
    act_for_none()
    assert await seen(tenants, None) == set()


async def test_the_organization_stays_after_a_rollback_or_a_commit(database: Database, org_ids: dict[str, int]) -> None:
    forgetful = Call(
        Statement(b"forgetful", FORGETFUL.encode(), ()), lambda rows, result: {org_id for (org_id,) in rows}
    )
    both = set(org_ids.values())
    async with database.transaction() as tx:
        for end in (tx.rollback, tx.commit):
            assert {org_id async for (org_id,) in await tx.execute(FORGETFUL)} == both
            await end()
            assert await run(tx, forgetful) == (both,)
            await end()
        async with tx.transaction():
            assert await run(tx, forgetful) == (both,)


async def test_a_route_without_a_condition_on_the_organization_shows_only_the_callers_rows(
    service: SqlService, org_ids: dict[str, int]
) -> None:
    app = create_app(Settings(), service.dsn, SECRET, name=f"row-security-{token(4).hex()}")

    async def forgetful(request: Request) -> HTTPResponse:
        if request.args.get("known"):
            await require(request, READ_EVENTS)
        async with services(request).database.transaction() as tx:
            return json([row[0] async for row in await tx.execute(FORGETFUL)])

    app.add_route(forgetful, "/forgetful")
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answers = []
        for key, query in [(service.ann.key, "?known=1"), (service.ben.key, "?known=1"), (service.ben.key, "")]:
            response = await client.get(f"/forgetful{query}", headers={"Authorization": f"Bearer {key}"})
            answers.append(response.json())
    assert answers == [[org_ids["a"]], [org_ids["b"]], []]  # one connection; the last statement had no organization


def of(statement: str, table: str) -> sql.Composed:
    return sql.SQL(statement).format(sql.Identifier(table))
