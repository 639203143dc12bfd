"""One login role per organization for analysts' SQL, created on first use, isolated by literal row policies.

The boundary is the database's: a policy `TO role USING (org_id = 42)` per table names the role and the number, so there is
no setting a query could change to see other rows. The role may read the views of the schemas `analyst` and `analyst_past`
and exactly the columns they use, and nothing by name in schema `workbench`. Its rights are derived from the views: a view
that comes with a later migration is granted at the next start. Its name and password derive from the installation's secret
and are stored nowhere.
"""

import asyncio
import logging
from collections import defaultdict
from typing import LiteralString

import msgspec
from psycopg import errors, sql

from api.keyring import Keyring
from api.store.database import Database, Transaction
from api.store.statements import load

_log = logging.getLogger("workbench.readers")
_SQL = load("readers")

CONNECTIONS = 4
_SETTINGS: dict[LiteralString, LiteralString] = {  # defaults only: what must hold is set per connection, or outside
    "search_path": "analyst",
    "default_transaction_read_only": "on",
    "statement_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "2s",
    "work_mem": "16MB",
    "max_parallel_workers_per_gather": "0",
}
_TEMP_FILE_LIMIT = "512MB"
# CREATE POLICY waits for every running statement on the table and makes later ones queue behind it, so ingest waits
# with it: ask briefly and often instead of once and long.
_LOCK_TIMEOUT = "150ms"
_TRIES = 12
_PAUSE_SECONDS = 0.25


class ReaderError(Exception):
    """Analysts' SQL cannot be offered; the message tells the operator why."""


class ReaderBusyError(ReaderError):
    """The tables were locked all the time; asking again later helps."""


class Reader(msgspec.Struct, frozen=True):
    """A role to connect as. `confined`: the server itself keeps it from functions that act or tell about others."""

    role: str
    password: str
    confined: bool


class Readers:
    """The readers of one process: each organization's is made, or completed, once and then remembered."""

    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring
        self._known: dict[int, Reader] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, org_id: int) -> Reader:
        """Return an organization's reader; raise ReaderError, or UnavailableError."""
        async with self._locks[org_id]:
            reader = self._known.get(org_id)
            if reader is None:
                reader = self._known[org_id] = await self._provide(org_id)
            return reader

    def forget(self, org_id: int) -> None:
        """Look at the role again at its next use: somebody may have dropped it."""
        self._known.pop(org_id, None)

    async def _provide(self, org_id: int) -> Reader:
        role = self._keyring.reader_role(org_id)
        password = self._keyring.reader_password(role)
        for attempt in range(1, _TRIES + 1):
            try:
                async with self._database.transaction() as tx:
                    await provide_reader(tx, org_id, role, password)
                    return Reader(role, password, await reader_is_confined(tx, role))
            except _TryAgainError:
                _log.info("provide_reader_waits", extra={"org_id": org_id, "attempt": attempt})
                await asyncio.sleep(_PAUSE_SECONDS)
        raise ReaderBusyError("the tables are busy, so SQL access could not be prepared; try again")


class _TryAgainError(Exception):
    """Another process or statement was in the way; nothing was changed."""


async def provide_reader(tx: Transaction, org_id: int, role: str, password: str) -> None:
    """Create the role, or give it what it lacks; nothing is written when it lacks nothing. Raise ReaderError."""
    try:
        if unsafe := await unsafe_views(tx):
            raise ReaderError(f"SQL is switched off: {', '.join(unsafe)} would show rows of other organizations")
        if await reader_exists(tx, role) and not await reader_lacks(tx, role):
            return
        await tx.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
        await lock_readers(tx)
        if not await reader_exists(tx, role):
            await _create(tx, role, password)
        for kind, place, name in await reader_lacks(tx, role):
            await tx.execute(_remedy(kind, role, org_id, place, name))
    except errors.InsufficientPrivilege as error:
        raise ReaderError(_advice(tx, error)) from error
    except (errors.LockNotAvailable, errors.UniqueViolation, errors.DuplicateObject) as error:
        raise _TryAgainError from error  # roles belong to the server, the lock only to this database


async def lock_readers(tx: Transaction) -> None:
    """Wait for our turn to change readers, until the transaction ends."""
    await tx.execute(_SQL["lock_readers"])


async def reader_exists(tx: Transaction, role: str) -> bool:
    """Return whether the server knows the role."""
    return await _truth(tx, "reader_exists", {"role": role})


async def reader_is_confined(tx: Transaction, role: str) -> bool:
    """Return whether the hardening script keeps the role from functions that act."""
    return await _truth(tx, "reader_is_confined", {"role": role})


async def unsafe_views(tx: Transaction) -> list[str]:
    """Return the names of views and tables that row policies do not protect; there must be none."""
    return [row[0] for row in await (await tx.execute(_SQL["unsafe_views"], {})).fetchall()]


async def reader_lacks(tx: Transaction, role: str) -> list[tuple[str, str, str]]:
    """Return what an existing role lacks, as (kind, place, name)."""
    rows = await (await tx.execute(_SQL["reader_lacks"], {"role": role})).fetchall()
    return [(kind, place, name) for kind, place, name in rows]


async def stop_backend(tx: Transaction, pid: int) -> bool:
    """End a reader's connection; False when it was gone."""
    return await _truth(tx, "stop_backend", {"pid": pid})


async def _truth(tx: Transaction, name: str, parameters: dict[str, str | int]) -> bool:
    row = await (await tx.execute(_SQL[name], parameters)).fetchone()
    return row is not None and row[0] is True


async def _create(tx: Transaction, role: str, password: str) -> None:
    verifier = tx.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    name = sql.Identifier(role)
    await tx.execute(
        sql.SQL(
            "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION CONNECTION LIMIT {} PASSWORD {}"
        ).format(name, sql.Literal(CONNECTIONS), sql.Literal(verifier))
    )
    for setting, value in _SETTINGS.items():
        await tx.execute(sql.SQL("ALTER ROLE {} SET {} = {}").format(name, sql.Identifier(setting), sql.Literal(value)))
    try:
        async with tx.transaction():
            await tx.execute(
                sql.SQL("ALTER ROLE {} SET temp_file_limit = {}").format(name, sql.Literal(_TEMP_FILE_LIMIT))
            )
    except errors.InsufficientPrivilege:
        _log.warning("reader_without_temp_file_limit: grant SET ON PARAMETER temp_file_limit to %s", tx.info.user)


def _remedy(kind: str, role: str, org_id: int, place: str, name: str) -> sql.Composed:
    statement: LiteralString
    match kind:
        case "connect":
            statement = "GRANT CONNECT ON DATABASE {place} TO {role}"
        case "schema":
            statement = "GRANT USAGE ON SCHEMA {place} TO {role}"
        case "view":
            statement = "GRANT SELECT ON {place}.{name} TO {role}"
        case "column":
            statement = "GRANT SELECT ({name}) ON workbench.{place} TO {role}"
        case "policy":
            statement = "CREATE POLICY {role} ON workbench.{place} FOR SELECT TO {role} USING (org_id = {org_id})"
        case _:
            raise AssertionError(f"reader_lacks: {kind}")
    return sql.SQL(statement).format(
        role=sql.Identifier(role),
        place=sql.Identifier(place),
        name=sql.Identifier(name),
        org_id=sql.Literal(org_id),
    )


def _advice(tx: Transaction, error: errors.InsufficientPrivilege) -> str:
    reason = error.diag.message_primary or "permission denied"
    return (
        f"SQL is not available: the database role {tx.info.user} needs to create a login role per organization "
        f"({reason}); run: ALTER ROLE {tx.info.user} CREATEROLE"
    )
