"""Prepared statements of our own beside those of psycopg, on one connection."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest
from psycopg import errors

from api.store.calls import run
from api.store.database import Database, RefusedDataError, Transaction
from api.store.locks import hold_contacts

CONTACT = "01a1ffd0-b854-71ce-b9a9-56845d17867b"


async def test_a_rollback_makes_psycopg_drop_all_statements_and_ours_are_prepared_again(database: Database) -> None:
    await roll_back_after(database, both)
    async with database.transaction() as tx:
        await both(tx)


async def test_a_rollback_leaves_ours_in_place_where_psycopg_has_none(database: Database) -> None:
    await roll_back_after(database, ours)
    async with database.transaction() as tx:
        await ours(tx)


async def test_a_part_that_is_rolled_back_alone_drops_ours_too(database: Database) -> None:
    async with database.transaction() as tx:
        await both(tx)
        with pytest.raises(errors.DataError):
            await _part(tx)
        await both(tx)


async def _part(tx: Transaction) -> None:
    async with tx.transaction():
        await tx.execute("SELECT 'x'::integer")


async def test_statements_are_prepared_anew_after_a_while(database: Database) -> None:
    async with database.transaction() as tx:
        await ours(tx)
        before = await prepared_at(tx)
    async with database.transaction() as tx:
        tx.prepared_until_ns = 0
        await ours(tx)
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


async def ours(tx: Transaction) -> None:
    await run(tx, hold_contacts([CONTACT]))


async def both(tx: Transaction) -> None:
    for number in range(4):  # psycopg prepares what it is asked often
        await tx.execute("SELECT %s::integer", (number,))
    await ours(tx)
