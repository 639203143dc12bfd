"""Data as of one moment, for a backup of it, and an empty place for its return: the statements of `sql/queries/archive.sql`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from api.store.database import Transaction, UnavailableError, is_distributed, libpq_dsn, seeing_everybody
from api.store.statements import load

_SQL = load("archive")
_OURS = "DROP SCHEMA IF EXISTS workbench, analyst, analyst_past, analyst_direct CASCADE; DROP TABLE IF EXISTS public.workbench_migrations"


class LeftOutError(Exception):
    """A dump would leave out rows; the message tells the operator why."""


class Moment(msgspec.Struct, frozen=True):
    """A snapshot that other sessions may look at, its time, and the rows in it (`org/table`: how many)."""

    snapshot: str
    at: datetime
    rows: dict[str, int]


@asynccontextmanager
async def freeze(dsn: str) -> AsyncIterator[Moment]:
    """Give a moment that lasts as long as the caller needs it; raise LeftOutError where a dump would show less."""
    async with _connected(dsn, IsolationLevel.REPEATABLE_READ) as tx:
        if await is_distributed(tx) and await (await tx.execute(_SQL["passes_walls"])).fetchone() != (True,):
            raise LeftOutError("on Citus a dump shows all rows to a superuser alone: give such an address")
        row = await (await tx.execute(_SQL["freeze"])).fetchone()
        assert row is not None
        snapshot, at = row
        yield Moment(snapshot, at, await _counts(tx))


async def look_through(dsn: str) -> tuple[dict[str, int], list[str]]:
    """Return the rows there are (`org/table`: how many), and what contradicts itself, in words."""
    async with _connected(dsn) as tx:
        found = [
            f"{rows} {what} (organization {org})"
            async for what, org, rows in await tx.execute(_SQL["find_contradictions"])
        ]
        return await _counts(tx), found


async def is_in_use(dsn: str) -> bool:
    """Tell whether any organization is there."""
    async with _connected(dsn) as tx:
        known = await (await tx.execute("SELECT to_regclass('workbench.organizations')")).fetchone()
        if known is None or known[0] is None:
            return False
        row = await (await tx.execute(_SQL["find_organization"])).fetchone()
        return row is not None and bool(row[0])


async def is_cluster(dsn: str) -> bool:
    """Tell whether this is the coordinator of a Citus cluster."""
    async with _connected(dsn) as tx:
        return await is_distributed(tx)


async def make_room(dsn: str) -> None:
    """Take away our tables, in which nobody's data is."""
    async with _connected(dsn) as tx:
        await tx.execute(_OURS)


def apart(dsn: str) -> tuple[str, str | None]:
    """Return an address without its password, as programs of Postgres take it, and the password if there is one."""
    parts = conninfo_to_dict(libpq_dsn(dsn))
    password = parts.pop("password", None)
    return make_conninfo("", **parts), None if password is None else str(password)


async def _counts(tx: Transaction) -> dict[str, int]:
    return {f"{org}/{table}": rows async for table, org, rows in await tx.execute(_SQL["count_rows"])}


@asynccontextmanager
async def _connected(dsn: str, level: IsolationLevel | None = None) -> AsyncIterator[Transaction]:
    try:
        connection = await Transaction.connect(libpq_dsn(dsn), connect_timeout=5)
    except psycopg.OperationalError as error:
        raise UnavailableError(" ".join(str(error).split())) from error
    async with connection as tx:
        await tx.execute("SET search_path = workbench")
        await tx.execute("SET client_min_messages = warning")
        await tx.commit()
        await tx.set_isolation_level(level)
        await tx.set_read_only(None if level is None else True)
        async with seeing_everybody(tx):
            yield tx
