"""A connection to Postgres that breaks while rows are read is a database out of reach, whenever it breaks."""

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest

from api.query.run import Gateway, Question
from api.store.database import Database, UnavailableError
from tests.road import Road
from tests.servers import at

# 16 rows are asked for; then 256, and, before these are looked at, 256 more, whose first never comes.
_STUCK = """
    SELECT n, CASE WHEN n > 272 THEN (SELECT count(*) FROM generate_series(1, 1000000000) m WHERE m < n) END AS counted
    FROM generate_series(1, 1000) n"""
_WORKS_ON = """
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'workbench sql'
    AND state = 'active' AND clock_timestamp() - query_start > interval '0.3 s'"""


async def test_a_connection_that_breaks_between_two_fetches(filled, keyring, module_database, postgres):
    road = Road(module_database)
    async with road.open() as dsn:
        database = Database(dsn)
        await database.open()
        async with Gateway(database, keyring).ask(Question(1, _STUCK, None, clear_emails=False)) as answer:
            batches = answer.batches()
            assert (await anext(batches)).rows == 16
            await until_it_is_stuck(at(postgres.admin_dsn, urlsplit(module_database).path[1:]))
            road.cut()
            await asyncio.sleep(0.1)  # the fetch under way breaks; nothing was told of it yet
            with pytest.raises(UnavailableError, match="the connection to the database broke"):
                await anext(batches)
        await database.close()


async def until_it_is_stuck(dsn: str) -> None:
    """Return when the query has worked on a batch for a while."""
    async with asyncio.timeout(20), await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        while not await (await admin.execute(_WORKS_ON)).fetchall():  # noqa: ASYNC110 - another server has no event for us
            await asyncio.sleep(0.05)
