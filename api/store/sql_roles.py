"""Login roles that read SQL: one per organization for the gateway, and one for direct logins by other tools.

The database itself separates organizations. A policy `TO role USING (org_id = 42)` per table names the role and the
number, so a query has no setting that it could change to see other rows. A role may read its views and exactly the
columns they use, and nothing by name in the schema `workbench`. Its rights are derived from the views: a view of a
later migration is granted when the role is completed next.

The names and passwords of the gateway's roles derive from the installation's secret and are stored nowhere.

A direct login can lift every limit that is only a setting of its session. Its rights, its row policies, and its limits
of connections and temporary files are not: it cannot change them. A job ends sessions that run too long or hold too
much. Every role may change the settings that its later sessions begin with, so the job puts these back.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import LiteralString, TypeVar

import msgspec
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from api.crypto import Keyring
from api.store.database import Database, Transaction, is_coordinator
from api.store.query import query

_log = logging.getLogger("workbench.roles")

# --- Errors and retries

_TEMP_FILE_LIMIT = "512MB"

# CREATE POLICY waits for every running statement on the table and makes later ones queue behind it, so ingest waits
# with it. The code therefore makes many short attempts before a few long ones: autovacuum gives up its lock on a table
# only after another session has waited for it for `deadlock_timeout`, 1 s.
_LOCK_TIMEOUTS_MS = (150,) * 12 + (1500,) * 6

_PAUSE_S = 0.25

Result = TypeVar("Result")


class ReaderError(Exception):
    """SQL access is not available; the message is for the operator."""


class ReaderBusyError(ReaderError):
    """The tables stayed locked; the caller may try again later."""


class _TryAgainError(Exception):
    """Another process or statement holds a lock; nothing was changed."""


async def change_roles(database: Database, change: Callable[[Transaction], Awaitable[Result]]) -> Result:
    """Change roles in a transaction of its own, and retry while tables are locked. Raises ReaderError."""
    for attempt, lock_timeout_ms in enumerate(_LOCK_TIMEOUTS_MS, 1):
        try:
            async with database.transaction() as tx:
                await tx.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(lock_timeout_ms))
                try:
                    return await change(tx)
                except errors.InsufficientPrivilege as error:
                    role, reason = tx.info.user, error.diag.message_primary or "permission denied"
                    raise ReaderError(
                        f"SQL is not available: the database role {role} needs to create a login role per organization "
                        f"({reason}); run: ALTER ROLE {role} CREATEROLE"
                    ) from error
                except (errors.LockNotAvailable, errors.UniqueViolation, errors.DuplicateObject) as error:
                    # Our lock covers this database only, while roles belong to the whole server: a process of another
                    # database may have changed the same role.
                    raise _TryAgainError from error
        except _TryAgainError:
            _log.info("roles_wait", extra={"attempt": attempt})
            await asyncio.sleep(_PAUSE_S)
    raise ReaderBusyError("the tables are busy, so SQL access could not be prepared; try again")


@query
async def lock_role_changes(tx: Transaction) -> None:
    """Wait until no other process changes roles, and exclude others until the transaction ends."""


# --- Rights of a role


@query
async def role_exists(tx: Transaction, role: str) -> bool: ...


@query
async def role_is_confined(tx: Transaction, role: str) -> bool:
    """Return whether the hardening script keeps the role from functions that act or reveal other sessions."""


async def create_role(tx: Transaction, role: str, connections: int) -> None:
    """Create a role without any rights, not even to log in."""
    await tx.execute(
        sql.SQL(
            "CREATE ROLE {} NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION CONNECTION LIMIT {}"
        ).format(sql.Identifier(role), sql.Literal(connections))
    )


async def set_defaults(tx: Transaction, role: str, settings: Mapping[LiteralString, LiteralString]) -> bool:
    """Set the settings that the role's sessions begin with, and a limit on temporary files that they cannot lift.

    Return False if our role may not set that limit.
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
        reason = f"grant SET ON PARAMETER temp_file_limit to {tx.info.user}"
        _log.warning("reader_without_temp_file_limit", extra={"role": role, "reason": reason})
        return False
    return True


async def allow_login(tx: Transaction, role: str, password: str) -> None:
    """Let a role log in with a password. Postgres receives only the verifier."""
    verifier = tx.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    await tx.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier)))


async def complete_role(tx: Transaction, role: str, org_id: int, views: list[str]) -> None:
    """Grant a role the missing rights to read an organization's rows in these views."""
    for kind, place, name in await find_missing_rights(tx, role, views):
        await tx.execute(_grant(kind, role, org_id, place, name))
    if await is_coordinator(tx):
        # Queries reach the workers of Citus with the names of tables instead of views, so there, and only there, the
        # role needs the schema of the tables. Only the coordinator can log in to workers.
        identifier = sql.Identifier(role)
        await tx.execute(sql.SQL("GRANT USAGE ON SCHEMA workbench TO {}").format(identifier))
        await tx.execute("SET LOCAL citus.enable_ddl_propagation = off")
        await tx.execute(sql.SQL("REVOKE USAGE ON SCHEMA workbench FROM {}").format(identifier))
        await tx.execute("SET LOCAL citus.enable_ddl_propagation = on")


def _grant(kind: str, role: str, org_id: int, place: str, name: str) -> sql.Composed:
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
            raise AssertionError(f"find_missing_rights: {kind}")
    return sql.SQL(statement).format(
        role=sql.Identifier(role), place=sql.Identifier(place), name=sql.Identifier(name), org_id=sql.Literal(org_id)
    )


@query
async def find_unsafe_views(tx: Transaction) -> list[str]:
    """Return the names of views and tables that row policies do not protect; none is allowed."""


@query
async def find_missing_rights(tx: Transaction, role: str, views: list[str]) -> list[tuple[str, str, str]]:
    """Return the missing rights of a role, as (kind, schema or table, name)."""


# --- The gateway's roles

READER_CONNECTIONS = 4
_READER_SETTINGS: dict[
    LiteralString, LiteralString
] = {  # defaults: limits that must hold are set per connection, or by the server
    "search_path": "analyst",
    "default_transaction_read_only": "on",
    "statement_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "2s",
    "work_mem": "16MB",
    "max_parallel_workers_per_gather": "0",
}


class ReaderRole(msgspec.Struct, frozen=True):
    """A role to connect as. `confined`: see `role_is_confined`."""

    role: str
    password: str
    confined: bool


class Readers:
    """The gateway's roles of one process: each organization's role is created, or completed, once and then cached."""

    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring
        self._roles: dict[int, ReaderRole] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, org_id: int) -> ReaderRole:
        """Return an organization's role. Raises ReaderError or DatabaseUnavailableError."""
        async with self._locks[org_id]:
            if org_id in self._roles:
                return self._roles[org_id]
            role = self._keyring.reader_role(org_id)
            password = self._keyring.reader_password(role)

            async def provide(tx: Transaction) -> ReaderRole:
                await provide_reader(tx, org_id, role, password)
                return ReaderRole(role, password, await role_is_confined(tx, role))

            reader = self._roles[org_id] = await change_roles(self._database, provide)
            return reader

    def forget(self, org_id: int) -> None:
        """Check the role again at its next use, because it may have been dropped."""
        self._roles.pop(org_id, None)


async def provide_reader(tx: Transaction, org_id: int, role: str, password: str) -> None:
    """Create the role, or grant its missing rights; write nothing if no right is missing. Raises ReaderError."""
    if unsafe := await find_unsafe_views(tx):
        raise ReaderError(f"SQL is switched off: {', '.join(unsafe)} would show rows of other organizations")
    views = await list_gateway_views(tx)
    if await role_exists(tx, role) and not await find_missing_rights(tx, role, views):
        return
    await lock_role_changes(tx)
    if not await role_exists(tx, role):
        await create_role(tx, role, READER_CONNECTIONS)
        await set_defaults(tx, role, _READER_SETTINGS)
        await allow_login(tx, role, password)
    await complete_role(tx, role, org_id, views)


@query
async def list_gateway_views(tx: Transaction) -> list[str]:
    """Return the qualified names of the views that the gateway's roles see."""


@query
async def stop_backend(tx: Transaction, pid: int) -> bool:
    """End the connection of a role; False if it is gone."""


# --- Direct logins

LOGIN_CONNECTIONS = 8
_LOGIN_SETTINGS: dict[LiteralString, LiteralString] = {
    "search_path": "analyst_direct, analyst",
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "2s",
    "work_mem": "16MB",
    "max_parallel_workers_per_gather": "0",
    "client_connection_check_interval": "1s",
}
_GRANT_TO_US: LiteralString = "GRANT {} TO CURRENT_USER WITH INHERIT TRUE, SET FALSE"
_GRANT_TO_US_BEFORE_16: LiteralString = "GRANT {} TO CURRENT_USER"


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of direct sessions.

    Seconds of a statement and of a transaction, locks held, and the used share of the notification queue.

    No lock may be of a mode that makes other transactions wait; reading needs none. While more than `queue_share` (0
    to 1) of the server's queue is in use, no session may stay in a transaction.
    """

    statement_seconds: float = 60.0
    transaction_seconds: float = 60.0
    locks: int = 4_000
    queue_share: float = 0.02


class LoginSession(msgspec.Struct, frozen=True):
    """A session of a direct login; `since`: when it connected."""

    pid: int
    since: datetime
    state: str | None


class EndedSession(msgspec.Struct, frozen=True):
    """A session that was ended.

    `reason`: `revoked`, `elsewhere` (in another database), `statement`, `transaction`, `notifications` or `locks`.
    """

    role: str
    pid: int
    reason: str


async def open_login(tx: Transaction, org_id: int, role: str, password: str) -> bool:
    """Create or complete the role, and let it log in with this password; return False if it may log in already.

    Raises ReaderError.
    """
    if unsafe := await find_unsafe_views(tx):
        raise ReaderError(f"{', '.join(unsafe)} would show rows of other organizations")
    await lock_role_changes(tx)
    if await is_open(tx, role):
        return False
    name = sql.Identifier(role)
    if not await role_exists(tx, role):
        await create_role(tx, role, LOGIN_CONNECTIONS)
    if not await role_is_confined(tx, role) or await may_make_tables(tx, role):
        raise ReaderError("the server is not hardened, so a login could reach data of others; run: workbench migrate")
    if await max_prepared_transactions(tx):
        raise ReaderError("a login could leave prepared transactions behind: set max_prepared_transactions to 0")
    # Membership lets us see the role's sessions and end them.
    membership = _GRANT_TO_US if tx.info.server_version >= 160_000 else _GRANT_TO_US_BEFORE_16
    await tx.execute(sql.SQL(membership).format(name))
    if not await reset_login(tx, role):
        raise ReaderError(f"a login could fill the disk; run: GRANT SET ON PARAMETER temp_file_limit TO {tx.info.user}")
    await complete_role(tx, role, org_id, await list_direct_views(tx))
    await allow_login(tx, role, password)
    return True


async def reset_login(tx: Transaction, role: str) -> bool:
    """Give a direct login the settings that its sessions begin with, and no others; False as in `set_defaults`."""
    name = sql.Identifier(role)
    await tx.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(name))
    for database in await list_databases_with_settings(tx, role):
        await tx.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET ALL").format(name, sql.Identifier(database)))
    return await set_defaults(tx, role, _LOGIN_SETTINGS)


async def reset_changed_logins(tx: Transaction) -> list[str]:
    """Put back the settings of direct logins that changed their own, and return the roles."""
    settings = [f"{name}={value}" for name, value in {**_LOGIN_SETTINGS, "temp_file_limit": _TEMP_FILE_LIMIT}.items()]
    if not await list_changed_logins(tx, settings):
        return []
    await lock_role_changes(tx)
    roles = await list_changed_logins(tx, settings)  # another process may have put them back meanwhile
    for role in roles:
        await reset_login(tx, role)
    return roles


async def complete_login(tx: Transaction, role: str, org_id: int) -> None:
    """Grant a login the views that were added since it was opened. Raises ReaderError."""
    if unsafe := await find_unsafe_views(tx):
        raise ReaderError(f"{', '.join(unsafe)} would show rows of other organizations")
    await lock_role_changes(tx)
    if await is_open(tx, role):
        await complete_role(tx, role, org_id, await list_direct_views(tx))


async def close_login(tx: Transaction, role: str) -> None:
    """Revoke the login of a role. Open sessions stay until `end_sessions`."""
    await tx.execute(sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(sql.Identifier(role)))


@query
async def may_make_tables(tx: Transaction, role: str) -> bool: ...


@query
async def max_prepared_transactions(tx: Transaction) -> int: ...


@query
async def list_changed_logins(tx: Transaction, settings: list[str]) -> list[str]:
    """Return the direct logins whose sessions begin with other settings."""


@query
async def list_databases_with_settings(tx: Transaction, role: str) -> list[str]: ...


@query
async def is_open(tx: Transaction, role: str) -> bool:
    """Return whether the role exists and may log in."""


@query
async def list_open_logins(tx: Transaction) -> list[tuple[str, int]]:
    """Return the roles that may log in to this database directly, each with its organization."""


@query
async def list_direct_views(tx: Transaction) -> list[str]:
    """Return the names of the views that a direct login sees."""


@query
async def list_sessions(tx: Transaction, role: str) -> list[LoginSession]:
    """Return the role's sessions, oldest first."""


@query
async def end_sessions(tx: Transaction, role: str) -> tuple[int, ...]:
    """End all sessions of a role; return their process ids."""


@query
async def end_excessive_sessions(tx: Transaction, limits: SessionLimits) -> list[EndedSession]:
    """End the sessions of direct logins that exceed the limits, and return them."""


def login_url(dsn: str, role: str, password: str) -> str:
    """Return the URL with which the role logs in to the same database."""
    parameters = conninfo_to_dict(dsn)
    kept = ("hostaddr", "sslmode", "sslrootcert", "channel_binding", "target_session_attrs")
    query = {name: str(parameters[name]) for name in kept if parameters.get(name)}
    host, port, database = (
        str(parameters[name]) if parameters.get(name) else None for name in ("host", "port", "dbname")
    )
    if host is not None and host.startswith("/"):  # the folder of a Unix socket goes into the query of a URL
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = None
    from sqlalchemy.engine import URL  # as in `database.libpq_dsn`

    url = URL.create("postgresql", role, password, host, int(port) if port else None, database, query)
    return url.render_as_string(hide_password=False)
