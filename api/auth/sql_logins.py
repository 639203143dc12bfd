"""Direct SQL logins, one per organization: created with a new password, listed, completed after migrations, revoked.

A login's role limits cannot bound everything (a session can raise its own timeouts), so a job ends excessive sessions.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from api.auth import AccessError, keys
from api.clock import token
from api.crypto import Keyring
from api.jobs import every
from api.store import sql_roles as store
from api.store.database import Database, Transaction
from api.store.migrate import require_connection
from api.store.sql_roles import LoginSession, ReaderError, SessionLimits, change_roles, end_excessive_sessions

CHECK_INTERVAL_S = 1.0
_PASSWORD_BYTES = 24

_log = logging.getLogger("workbench.direct")


async def create(dsn: str, keyring: Keyring, org_name: str) -> str:
    """Create the direct login of an organization and return its URL, with a password that cannot be shown again.

    Raise AccessError.
    """
    password = token(_PASSWORD_BYTES).hex()
    async with _login(dsn, keyring, org_name) as (database, org_id, role):

        async def open_login(tx: Transaction) -> bool:
            return await store.open_login(tx, org_id, role, password)

        try:
            if not await change_roles(database, open_login):
                raise AccessError(
                    f"{org_name} already has a direct login; revoke it first: workbench reader revoke --org {org_name}"
                )
        except ReaderError as error:
            raise AccessError(str(error)) from error
        return store.login_url(database.dsn, role, password)


async def sessions(dsn: str, keyring: Keyring, org_name: str) -> tuple[str, list[LoginSession]] | None:
    """Return the role of the direct login and its sessions, or None without a login; raise AccessError."""
    async with _login(dsn, keyring, org_name) as (database, _, role), database.transaction() as tx:
        return (role, await store.list_sessions(tx, role)) if await store.is_open(tx, role) else None


async def revoke(dsn: str, keyring: Keyring, org_name: str) -> int:
    """Revoke the direct login and end its sessions; return how many were open. Raise AccessError."""
    async with _login(dsn, keyring, org_name) as (database, _, role):
        async with database.transaction() as tx:
            if not await store.is_open(tx, role):
                raise AccessError(f"{org_name} has no direct login")
            # Before the role changes: a session can hold a lock on it, and ALTER ROLE would wait for that.
            ended = await store.end_sessions(tx, role)

        async def close_login(tx: Transaction) -> None:
            await store.close_login(tx, role)

        try:
            await change_roles(database, close_login)
        except ReaderError as error:
            raise AccessError(str(error)) from error
        async with database.transaction() as tx:  # sessions that began after the first look, before the role was closed
            return len({*ended, *await store.end_sessions(tx, role)})


async def complete(dsn: str) -> None:
    """Grant every direct login the views that a migration added; raise AccessError."""
    try:
        async with Database(dsn, size=1) as database:
            async with database.transaction() as tx:
                logins = await store.list_open_logins(tx)
            for role, org_id in logins:
                await change_roles(database, partial(store.complete_login, role=role, org_id=org_id))
    except ReaderError as error:
        raise AccessError(f"direct logins lack the new views: {error}; run workbench migrate again") from error


async def keep_bounded(database: Database, limits: SessionLimits | None = None) -> None:
    """End excessive sessions of direct logins and put back changed settings every second, until cancelled."""
    chosen = limits or SessionLimits()
    await every(CHECK_INTERVAL_S, "direct", lambda: end(database, chosen))


async def end(database: Database, limits: SessionLimits) -> None:
    """End the sessions that exceed the limits, and put back the settings of logins that changed their own."""
    async with database.transaction() as tx:
        ended = await end_excessive_sessions(tx, limits)
    for session in ended:
        extra = {"role": session.role, "pid": session.pid, "reason": session.reason}
        _log.warning("direct_session_ended", extra=extra)
    async with database.transaction() as tx:
        for role in await store.reset_changed_logins(tx):
            _log.warning("direct_login_reset", extra={"role": role})


@asynccontextmanager
async def _login(dsn: str, keyring: Keyring, org_name: str) -> AsyncIterator[tuple[Database, int, str]]:
    await require_connection(dsn)
    async with Database(dsn, size=1) as database:
        async with database.transaction() as tx:
            org_id = await keys.find_org_or_fail(tx, org_name)
        yield database, org_id, keyring.direct_role(org_id)
