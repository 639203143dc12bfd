"""A role's rights are granted while other sessions use the tables."""

import asyncio

import psycopg

from api.store.database import libpq_dsn
from api.store.sql_roles import Readers

LONG_WAIT = """
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND clock_timestamp() - query_start > interval '1 s'"""


async def test_autovacuum_that_yields_after_a_second_does_not_keep_a_role_from_its_rights(
    database, keyring, org, database_url
):
    """The lock here is autovacuum's, and it is released when autovacuum would release it."""
    async with (
        await psycopg.AsyncConnection.connect(libpq_dsn(database_url), autocommit=True) as vacuum,
        # In a transaction, pg_stat_activity keeps what it showed first.
        await psycopg.AsyncConnection.connect(libpq_dsn(database_url), autocommit=True) as observer,
    ):
        await vacuum.execute("BEGIN")
        await vacuum.execute("LOCK TABLE workbench.contacts IN SHARE UPDATE EXCLUSIVE MODE")
        creating = asyncio.create_task(Readers(database, keyring).of(1))
        while not creating.done() and not await (await observer.execute(LONG_WAIT)).fetchone():  # noqa: ASYNC110 - the server gives no signal
            await asyncio.sleep(0.02)
        await vacuum.execute("ROLLBACK")
        assert (await creating).role
