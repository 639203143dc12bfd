"""Login roles that read: each sees certain views, and in them one organization's rows.

The boundary is the database's: a policy `TO role USING (org_id = 42)` per table names the role and the number, so there is
no setting a query could change to see other rows. A role may read its views and exactly the columns they use, and nothing by
name in schema `workbench`. Its rights are derived from the views: a view that comes with a later migration is granted when
the role is completed next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import LiteralString, TypeVar

from psycopg import errors, sql

from api.store.clusters import is_coordinator
from api.store.database import Database, Transaction
from api.store.statements import load

_log = logging.getLogger("workbench.roles")
_SQL = load("readers")

_TEMP_FILE_LIMIT = "512MB"
# CREATE POLICY waits for every running statement on the table and makes later ones queue behind it, so ingest waits
# with it: ask briefly and often instead of once and long.
_LOCK_TIMEOUT = "150ms"
_TRIES = 12
_PAUSE_SECONDS = 0.25

Found = TypeVar("Found")


class ReaderError(Exception):
    """Reading by SQL cannot be offered; the message tells the operator why."""


class ReaderBusyError(ReaderError):
    """The tables were locked all the time; asking again later helps."""


async def patiently(database: Database, change: Callable[[Transaction], Awaitable[Found]]) -> Found:
    """Change roles in a transaction of its own, again while tables are locked; raise ReaderError."""
    for attempt in range(1, _TRIES + 1):
        try:
            async with database.transaction() as tx:
                return await _tried(tx, change)
        except _TryAgainError:
            _log.info("roles_wait", extra={"attempt": attempt})
            await asyncio.sleep(_PAUSE_SECONDS)
    raise ReaderBusyError("the tables are busy, so SQL access could not be prepared; try again")


class _TryAgainError(Exception):
    """Another process or statement was in the way; nothing was changed."""


async def _tried(tx: Transaction, change: Callable[[Transaction], Awaitable[Found]]) -> Found:
    try:
        return await change(tx)
    except errors.InsufficientPrivilege as error:
        raise ReaderError(_advice(tx, error)) from error
    except (errors.LockNotAvailable, errors.UniqueViolation, errors.DuplicateObject) as error:
        raise _TryAgainError from error  # roles belong to the server, the lock only to this database


async def take_turns(tx: Transaction) -> None:
    """Wait for our turn to change roles, until the transaction ends; wait briefly for everything from now on."""
    await tx.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
    await tx.execute(_SQL["lock_readers"])


async def create_role(tx: Transaction, role: str, connections: int) -> None:
    """Create a role that may nothing, and not even log in."""
    await tx.execute(
        sql.SQL(
            "CREATE ROLE {} NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION CONNECTION LIMIT {}"
        ).format(sql.Identifier(role), sql.Literal(connections))
    )


async def set_defaults(tx: Transaction, role: str, settings: Mapping[LiteralString, LiteralString]) -> bool:
    """Give a role the settings its sessions begin with, and a limit of temporary files that they cannot lift.

    False when we may not set that limit.
    """
    name = sql.Identifier(role)
    for setting, value in settings.items():
        values = sql.SQL(", ").join(map(sql.Literal, value.split(", ")))
        await tx.execute(sql.SQL("ALTER ROLE {} SET {} = {}").format(name, sql.Identifier(setting), values))
    try:
        async with tx.transaction():
            await tx.execute(
                sql.SQL("ALTER ROLE {} SET temp_file_limit = {}").format(name, sql.Literal(_TEMP_FILE_LIMIT))
            )
    except errors.InsufficientPrivilege:
        _log.warning("reader_without_temp_file_limit: grant SET ON PARAMETER temp_file_limit to %s", tx.info.user)
        return False
    return True


async def let_in(tx: Transaction, role: str, password: str) -> None:
    """Let a role log in with a password, of which Postgres gets the verifier only."""
    verifier = tx.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    await tx.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier)))


async def complete_role(tx: Transaction, role: str, org_id: int, views: list[str]) -> None:
    """Give a role what it lacks to see an organization's rows in these views."""
    for kind, place, name in await role_lacks(tx, role, views):
        await tx.execute(_remedy(kind, role, org_id, place, name))
    if await is_coordinator(tx):
        await _let_into_workers(tx, role)


async def _let_into_workers(tx: Transaction, role: str) -> None:
    """Let a role reach by name, on the workers of Citus alone, what its queries are sent to: nobody logs in there but the coordinator."""
    name = sql.Identifier(role)
    await tx.execute(sql.SQL("GRANT USAGE ON SCHEMA workbench TO {}").format(name))
    await tx.execute("SET LOCAL citus.enable_ddl_propagation = off")
    await tx.execute(sql.SQL("REVOKE USAGE ON SCHEMA workbench FROM {}").format(name))
    await tx.execute("SET LOCAL citus.enable_ddl_propagation = on")


async def role_exists(tx: Transaction, role: str) -> bool:
    """Return whether the server knows the role."""
    return await _truth(tx, "role_exists", {"role": role})


async def role_is_confined(tx: Transaction, role: str) -> bool:
    """Return whether the hardening script keeps the role from functions that act."""
    return await _truth(tx, "role_is_confined", {"role": role})


async def unsafe_views(tx: Transaction) -> list[str]:
    """Return the names of views and tables that row policies do not protect; there must be none."""
    return [row[0] for row in await (await tx.execute(_SQL["unsafe_views"], {})).fetchall()]


async def role_lacks(tx: Transaction, role: str, views: list[str]) -> list[tuple[str, str, str]]:
    """Return what an existing role lacks, as (kind, place, name)."""
    rows = await (await tx.execute(_SQL["role_lacks"], {"role": role, "views": views})).fetchall()
    return [(kind, place, name) for kind, place, name in rows]


async def _truth(tx: Transaction, name: str, parameters: dict[str, str]) -> bool:
    row = await (await tx.execute(_SQL[name], parameters)).fetchone()
    return row is not None and row[0] is True


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
            raise AssertionError(f"role_lacks: {kind}")
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
