"""Prepared statements of this project and of psycopg work on one connection."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest
from psycopg import errors

from api.store.database import Database, RefusedDataError, Transaction
from api.store.locks import hold_contacts
from api.store.query import run

CONTACT = "01a1ffd0-b854-71ce-b9a9-56845d17867b"


async def test_statements_are_prepared_again_after_psycopg_dropped_them_in_a_rollback(database: Database) -> None:
    await roll_back_after(database, run_both)
    async with database.transaction() as tx:
        await run_both(tx)


async def test_a_rollback_keeps_our_statements_if_psycopg_prepared_none(database: Database) -> None:
    await roll_back_after(database, run_own_statement)
    async with database.transaction() as tx:
        await run_own_statement(tx)


async def test_a_rollback_to_a_savepoint_drops_our_statements(database: Database) -> None:
    async with database.transaction() as tx:
        await run_both(tx)
        with pytest.raises(errors.DataError):
            await _fail_in_savepoint(tx)
        await run_both(tx)


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


async def roll_back_after(database: Database, use: Callable[[Transaction], Awaitable[None]]) -> None:
    with pytest.raises(RefusedDataError):
        await _refused(database, use)


async def _refused(database: Database, use: Callable[[Transaction], Awaitable[None]]) -> None:
    async with database.transaction() as tx:
        await use(tx)
        await tx.execute("SELECT 'x'::integer")


async def run_own_statement(tx: Transaction) -> None:
    await run(tx, hold_contacts([CONTACT]))


async def run_both(tx: Transaction) -> None:
    for number in range(4):  # psycopg prepares statements that are repeated
        await tx.execute("SELECT %s::integer", (number,))
    await run_own_statement(tx)
