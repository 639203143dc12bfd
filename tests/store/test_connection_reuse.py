"""A request leaves no state on its connection for the next one, however it ends (docs/trust.md G4)."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from api.store.database import Database, RefusedDataError, TooSlowError, Transaction, TransactionConflictError
from api.store.locks import hold_contacts, hold_identifiers
from api.store.query import run
from workbench.language.contact import IdentifierKind

Failure = Callable[[Transaction], Awaitable[object]]

SESSION = """
    SELECT current_user = session_user, current_setting('search_path'), current_setting('statement_timeout'),
           current_setting('transaction_read_only'), nullif(current_setting('workbench.past_end', true), ''),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
           (SELECT count(*) FROM pg_cursors WHERE name <> ''), to_regclass('pg_temp.of_one')
"""
CLEAN = (True, "workbench", "10s", "off", None, 0, 0, None)
CANARY = "canary-of-one-request"


async def change_connection(tx: Transaction) -> None:
    """Change the connection in every way that a request may, and more."""
    await run(tx, hold_identifiers([(1, (IdentifierKind.EMAIL, "0" * 32))]))
    await run(tx, hold_contacts(["00000000-0000-7000-8000-000000000001"]))
    await tx.execute("SET LOCAL statement_timeout = '7s'")
    await tx.execute("SELECT set_config('workbench.past_end', '7', true), set_config('search_path', 'analyst', true)")
    await tx.execute("CREATE TEMPORARY TABLE of_one ON COMMIT DROP AS SELECT 1")
    await tx.execute("DECLARE of_one CURSOR FOR SELECT 1")
    await tx.execute("SELECT %s::text", (CANARY,), prepare=True)


async def end_normally(_: Transaction) -> None:
    """End without an error."""


async def a_value_is_refused(tx: Transaction) -> None:
    await tx.execute("INSERT INTO workbench.organizations (name, created_at) VALUES ('NOT A NAME', now())")


async def exceed_the_time_limit(tx: Transaction) -> None:
    await tx.execute("SET LOCAL statement_timeout = '20ms'")
    await tx.execute("SELECT pg_sleep(5)")


async def cause_deadlock(tx: Transaction) -> None:
    await tx.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")


async def raise_bug(_: Transaction) -> None:
    raise ZeroDivisionError


async def run_invalid_statement(tx: Transaction) -> None:
    await tx.execute("SELEKT 1")  # type: ignore[call-overload]


FAILURES: dict[str, tuple[Failure, type[Exception] | None]] = {
    "none": (end_normally, None),
    "value": (a_value_is_refused, RefusedDataError),
    "timeout": (exceed_the_time_limit, TooSlowError),
    "deadlock": (cause_deadlock, TransactionConflictError),
    "code": (raise_bug, ZeroDivisionError),
    "statement": (run_invalid_statement, psycopg.errors.SyntaxError),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_g4_a_connection_keeps_no_state(database: Database, name: str) -> None:
    failure, raised = FAILURES[name]

    async def request() -> int:
        async with database.transaction() as tx:
            await change_connection(tx)
            pids.append(tx.info.backend_pid)
            await failure(tx)
        return 0

    pids: list[int] = []
    if raised is None:
        await request()
    else:
        with pytest.raises(raised):
            await request()
    assert await session_state(database) == (pids[0], *CLEAN)


async def test_g4_a_cancelled_request_leaves_no_state_on_a_connection(database: Database) -> None:
    begun = asyncio.Event()

    async def request() -> None:
        async with database.transaction() as tx:
            await change_connection(tx)
            begun.set()
            await tx.execute("SELECT pg_sleep(30)")

    cancelled = asyncio.create_task(request())
    await begun.wait()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert (await session_state(database))[1:] == CLEAN


async def test_g4_statements_that_stay_prepared_hold_no_values(database: Database) -> None:
    async with database.transaction() as tx:
        await change_connection(tx)
    async with database.transaction() as tx:
        texts = [row[0] for row in await (await tx.execute("SELECT statement FROM pg_prepared_statements")).fetchall()]
    assert texts
    assert not [text for text in texts if CANARY in text]


async def session_state(database: Database) -> tuple[object, ...]:
    """Return the backend of the connection that the next request gets, and the state of its session."""
    async with database.transaction() as tx:
        row = await (await tx.execute(SESSION)).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return (tx.info.backend_pid, *row)
