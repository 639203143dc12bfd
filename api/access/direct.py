"""Direct logins as whole operator commands: one per organization, opened with a new password, looked at, completed, revoked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from api.access import AccessError, orgs
from api.clock import token
from api.keyring import Keyring
from api.store import direct as store
from api.store.checkup import must_answer
from api.store.database import Database, Transaction
from api.store.direct import Session
from api.store.roles import ReaderError, patiently

_PASSWORD_BYTES = 24


async def create(dsn: str, keyring: Keyring, org_name: str) -> str:
    """Open an organization's direct login and return its URL, the only time its password is shown; raise AccessError."""
    password = token(_PASSWORD_BYTES).hex()
    async with _login(dsn, keyring, org_name) as (database, org_id, role):

        async def opened(tx: Transaction) -> bool:
            return await store.open_login(tx, org_id, role, password)

        try:
            if not await patiently(database, opened):
                raise AccessError(
                    f"{org_name} has a direct login already; end that first: workbench reader revoke --org {org_name}"
                )
        except ReaderError as error:
            raise AccessError(str(error)) from error
        return store.address(database.dsn, role, password)


async def sessions(dsn: str, keyring: Keyring, org_name: str) -> tuple[str, list[Session]] | None:
    """Return the role of an organization's direct login with its sessions, None when there is none; raise AccessError."""
    async with _login(dsn, keyring, org_name) as (database, _, role), database.transaction() as tx:
        return (role, await store.sessions(tx, role)) if await store.is_open(tx, role) else None


async def revoke(dsn: str, keyring: Keyring, org_name: str) -> int:
    """Close an organization's direct login and end its sessions; return how many those were. Raise AccessError."""
    async with _login(dsn, keyring, org_name) as (database, _, role):
        async with database.transaction() as tx:
            if not await store.is_open(tx, role):
                raise AccessError(f"{org_name} has no direct login")
            ended = await store.end_sessions(tx, role)  # one of them may hold on to the role

        async def closed(tx: Transaction) -> None:
            await store.close_login(tx, role)

        try:
            await patiently(database, closed)
        except ReaderError as error:
            raise AccessError(str(error)) from error
        async with database.transaction() as tx:
            return len(ended | await store.end_sessions(tx, role))


async def complete(dsn: str) -> None:
    """Show every direct login the views that came with a migration; raise AccessError."""
    database = Database(dsn, size=1)
    await database.open()
    try:
        async with database.transaction() as tx:
            logins = await store.open_logins(tx)
        for role, org_id in logins:
            await patiently(database, partial(store.complete_login, role=role, org_id=org_id))
    except ReaderError as error:
        raise AccessError(f"direct logins do not see all views yet: {error}; run workbench migrate again") from error
    finally:
        await database.close()


@asynccontextmanager
async def _login(dsn: str, keyring: Keyring, org_name: str) -> AsyncIterator[tuple[Database, int, str]]:
    await must_answer(dsn)
    database = Database(dsn, size=1)
    await database.open()
    try:
        async with database.transaction() as tx:
            org_id = await orgs.known(tx, org_name)
        yield database, org_id, keyring.direct_role(org_id)
    finally:
        await database.close()
