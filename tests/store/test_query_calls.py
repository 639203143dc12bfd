"""Prepared statements of this project and of psycopg work on one connection."""

import asyncio
from datetime import datetime

import pytest
from psycopg import errors

from api.store.database import Database, RefusedDataError, Transaction
from api.store.locks import hold_contacts
from api.store.query import run

CONTACT = "01a1ffd0-b854-71ce-b9a9-56845d17867b"


async def test_rollbacks_keep_prepared_statements(database: Database) -> None:
    with pytest.raises(RefusedDataError):
        await _refused(database)
    async with database.transaction() as tx:
        before = await prepared_at(tx)
        with pytest.raises(errors.DataError):
            await _fail_in_savepoint(tx)
        await run_both(tx)
        assert await prepared_at(tx) == before


async def test_a_cancelled_rollback_keeps_prepared_statements(database: Database) -> None:
    async with database.transaction() as tx:
        await run_both(tx)
        before = await prepared_at(tx)
        rollback = asyncio.create_task(tx.rollback())
        await asyncio.sleep(0)  # it has sent ROLLBACK
        rollback.cancel()
        await asyncio.wait([rollback])
        await run_both(tx)
        assert await prepared_at(tx) == before


async def _refused(database: Database) -> None:
    async with database.transaction() as tx:
        await run_both(tx)
        await tx.execute("SELECT 'x'::integer")


async def _fail_in_savepoint(tx: Transaction) -> None:
    async with tx.transaction():
        await tx.execute("SELECT 'x'::integer")


async def test_statements_are_prepared_again_after_some_time(database: Database) -> None:
    async with database.transaction() as tx:
        await run_own_statement(tx)
        before = await prepared_at(tx)
    async with database.transaction() as tx:
        tx.prepared_until_ns = 0
        await run_own_statement(tx)
        assert await prepared_at(tx) > before


async def prepared_at(tx: Transaction) -> datetime:
    cursor = await tx.execute("SELECT prepare_time FROM pg_prepared_statements WHERE name = 'locks.lock_keys'")
    ((at,),) = await cursor.fetchall()
    return at


async def run_own_statement(tx: Transaction) -> None:
    await run(tx, hold_contacts([CONTACT]))


async def run_both(tx: Transaction) -> None:
    for number in range(6):  # by default, psycopg prepares statements that are repeated
        await tx.execute("SELECT %s::integer", (number,))
    await run_own_statement(tx)
