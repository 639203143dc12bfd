"""Snapshots for backups, checks of restored data, and the removal of our schemas before a restore."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from api.store.database import (
    DatabaseUnavailableError,
    Transaction,
    is_distributed,
    libpq_dsn,
    load,
    seeing_all_organizations,
)

_SQL = load("backup")
_DROP_SCHEMAS = (
    "DROP SCHEMA IF EXISTS workbench, analyst, analyst_past, analyst_changed, analyst_direct CASCADE; "
    "DROP TABLE IF EXISTS public.workbench_migrations"
)


class IncompleteDumpError(Exception):
    """A dump by this role would leave out rows; the message is for the operator."""


class DumpSnapshot(msgspec.Struct, frozen=True):
    """An exported snapshot, its time, and the number of rows in it, by `org/table`."""

    snapshot: str
    at: datetime
    rows: dict[str, int]


@asynccontextmanager
async def hold_snapshot(dsn: str) -> AsyncIterator[DumpSnapshot]:
    """Export a snapshot that other sessions can use until the block ends. Raises IncompleteDumpError."""
    async with _connected(dsn, IsolationLevel.REPEATABLE_READ) as tx:
        # pg_dump reads the shards of Citus under row-level security, which only a superuser (or BYPASSRLS) passes.
        if await is_distributed(tx) and await (await tx.execute(_SQL["bypasses_rls"])).fetchone() != (True,):
            raise IncompleteDumpError("on Citus only a superuser can dump all rows; use a superuser's database URL")
        row = await (await tx.execute(_SQL["hold_snapshot"])).fetchone()
        assert row is not None
        snapshot, at = row
        yield DumpSnapshot(snapshot, at, await _count_rows(tx))


async def check_consistency(dsn: str) -> tuple[dict[str, int], list[str]]:
    """Return the number of rows by `org/table`, and a sentence for every contradiction between tables."""
    async with _connected(dsn) as tx:
        contradictions = [
            f"{rows} {what} (organization {org})"
            async for what, org, rows in await tx.execute(_SQL["find_contradictions"])
        ]
        return await _count_rows(tx), contradictions


async def is_in_use(dsn: str) -> bool:
    """Return whether the database has any organization."""
    async with _connected(dsn) as tx:
        table = await (await tx.execute("SELECT to_regclass('workbench.organizations')")).fetchone()
        if table is None or table[0] is None:
            return False
        return bool(await tx.fetch_value(_SQL["has_organizations"]))


async def is_citus(dsn: str) -> bool:
    async with _connected(dsn) as tx:
        return await is_distributed(tx)


async def drop_schemas(dsn: str) -> None:
    """Drop our schemas from a database that is not in use."""
    async with _connected(dsn) as tx:
        await tx.execute(_DROP_SCHEMAS)


def split_password(dsn: str) -> tuple[str, str | None]:
    """Return a database URL without its password, as Postgres's programs take it, and the password, if there is one."""
    parts = conninfo_to_dict(libpq_dsn(dsn))
    password = parts.pop("password", None)
    return make_conninfo("", **parts), None if password is None else str(password)


async def _count_rows(tx: Transaction) -> dict[str, int]:
    return {f"{org}/{table}": rows async for table, org, rows in await tx.execute(_SQL["count_rows"])}


@asynccontextmanager
async def _connected(dsn: str, level: IsolationLevel | None = None) -> AsyncIterator[Transaction]:
    try:
        connection = await Transaction.connect(libpq_dsn(dsn), connect_timeout=5)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(" ".join(str(error).split())) from error
    async with connection as tx:
        await tx.execute("SET search_path = workbench")
        await tx.execute("SET client_min_messages = warning")
        await tx.commit()  # psycopg changes the isolation level only between transactions
        await tx.set_isolation_level(level)
        await tx.set_read_only(None if level is None else True)
        async with seeing_all_organizations(tx):
            yield tx
