"""A connection to Postgres that breaks while rows are read is reported as an unavailable database."""

import asyncio

import pytest

from api.query.gateway import AnalystQuery, Gateway
from api.store.database import Database, DatabaseUnavailableError
from tests.proxy import PostgresProxy
from tests.query.conftest import wait_for_running_query

# 16 rows are fetched, then 256. Before these are read, 256 more are requested, the first of which never arrives.
_STUCK = """
    SELECT n, CASE WHEN n > 272 THEN (SELECT count(*) FROM generate_series(1, 1000000000) m WHERE m < n) END AS counted
    FROM generate_series(1, 1000) n"""


async def test_a_connection_that_breaks_between_two_fetches(org_ids, keyring, module_database, postgres):
    proxy = PostgresProxy(module_database)
    async with proxy.open() as dsn:
        database = Database(dsn)
        await database.open()
        async with Gateway(database, keyring).run(AnalystQuery(1, _STUCK, None, clear_emails=False)) as answer:
            batches = answer.batches()
            assert (await anext(batches)).rows == 16
            await wait_for_running_query(postgres, module_database)
            proxy.cut()
            await asyncio.sleep(0.1)  # the fetch under way breaks; the reader has not noticed yet
            with pytest.raises(DatabaseUnavailableError, match="the connection to the database was lost"):
                await anext(batches)
        await database.close()
