"""Callers get a specific error when the database ends their sessions."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import asyncpg, psycopg

from api.store.database import (
    Database,
    DatabaseUnavailableError,
    Transaction,
    TransactionConflictError,
    _named_statements,
    load,
    load_numbered,
    sql_folder,
)

BUMP = "UPDATE automation_epochs SET epoch = epoch + 1 WHERE org_id = %s"
SESSION = "SELECT FROM pg_stat_activity WHERE pid = %s"


async def test_a_session_that_ended_while_its_process_was_frozen_raises_database_unavailable(database_url: str) -> None:
    database = Database(database_url, size=2)
    await database.open()
    async with database.transaction() as other:
        with pytest.raises(DatabaseUnavailableError):
            await _freeze(database, other)
    await database.close()


async def _freeze(database: Database, other: Transaction) -> None:
    async with database.transaction() as tx, asyncio.timeout(10):
        await tx.execute("SET idle_in_transaction_session_timeout = 1")
        while (await other.execute(SESSION, (tx.info.backend_pid,))).rowcount:
            await other.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)


async def test_a_long_statement_is_not_ended_while_the_server_responds(database_url: str) -> None:
    async with Database(database_url, size=1) as database, database.transaction() as tx:
        assert await tx.fetch_value("SELECT 'done' FROM pg_sleep(2.5)") == "done"


async def test_a_round_trip_longer_than_the_caller_waits_is_ended(database_url: str) -> None:
    async with Database(database_url, size=1) as database:
        with pytest.raises(DatabaseUnavailableError):
            async with database.transaction(answer_s=0.5) as tx:
                await tx.execute("SELECT pg_sleep(60)")
        async with database.transaction() as tx:
            assert await tx.fetch_value("SELECT 1") == 1


@pytest.mark.plain
async def test_the_first_statement_on_a_new_connection_begins_its_transaction(database_url: str) -> None:
    database = Database(database_url, size=2)
    await database.open()
    async with database.transaction(), database.transaction() as new:
        await new.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    await database.close()


async def test_one_transaction_of_a_deadlock_fails_wherever_its_rows_are(database_url: str) -> None:
    database = Database(database_url, size=3, lock_ms=20_000)
    await database.open()
    rows = range(1, 4)  # on Citus they are on two nodes
    async with database.transaction() as tx:
        for org_id in rows:
            await tx.execute("INSERT INTO automation_epochs VALUES (%s, 1)", (org_id,))
    all_begun = asyncio.Barrier(len(rows))

    async def lock_both(first: int, second: int) -> None:
        async with database.transaction() as tx:
            await tx.execute(BUMP, (first,))
            await all_begun.wait()
            await tx.execute(BUMP, (second,))

    ended = await asyncio.gather(*(lock_both(org_id, org_id % 3 + 1) for org_id in rows), return_exceptions=True)
    await database.close()
    assert sorted(map(type, ended), key=str) == sorted([TransactionConflictError, type(None), type(None)], key=str)


@pytest.mark.parametrize("subject", sorted(path.stem for path in (sql_folder() / "queries").glob("*.sql")))
def test_parameters_of_named_statements_are_those_that_sqlalchemy_finds(subject: str) -> None:
    compiled = {name: text(body).compile(dialect=asyncpg.dialect()) for name, body in _named_statements(subject)}
    expected = {name: (str(statement), tuple(statement.positiontup or ())) for name, statement in compiled.items()}
    assert load_numbered(subject) == expected
    named = {name: str(text(body).compile(dialect=psycopg.dialect())) for name, body in _named_statements(subject)}
    assert load(subject) == named
