"""The gateway's login roles, one per organization, created on first use, which analysts' queries run as.

Name and password derive from the installation's secret and are stored nowhere.
"""

import asyncio
from collections import defaultdict
from typing import LiteralString

import msgspec

from api.keyring import Keyring
from api.store.database import Database, Transaction
from api.store.roles import (
    ReaderBusyError,
    ReaderError,
    complete_role,
    create_role,
    let_in,
    patiently,
    role_exists,
    role_is_confined,
    role_lacks,
    set_defaults,
    take_turns,
    unsafe_views,
)
from api.store.statements import load

__all__ = ["Reader", "ReaderBusyError", "ReaderError", "Readers", "gateway_views", "stop_backend"]

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

        async def provide(tx: Transaction) -> Reader:
            await provide_reader(tx, org_id, role, password)
            return Reader(role, password, await role_is_confined(tx, role))

        return await patiently(self._database, provide)


async def provide_reader(tx: Transaction, org_id: int, role: str, password: str) -> None:
    """Create the role, or give it what it lacks; nothing is written when it lacks nothing. Raise ReaderError."""
    if unsafe := await unsafe_views(tx):
        raise ReaderError(f"SQL is switched off: {', '.join(unsafe)} would show rows of other organizations")
    views = await gateway_views(tx)
    if await role_exists(tx, role) and not await role_lacks(tx, role, views):
        return
    await take_turns(tx)
    if not await role_exists(tx, role):
        await create_role(tx, role, CONNECTIONS)
        await set_defaults(tx, role, _SETTINGS)
        await let_in(tx, role, password)
    await complete_role(tx, role, org_id, views)


async def stop_backend(tx: Transaction, pid: int) -> bool:
    """End a reader's connection; False when it was gone."""
    row = await (await tx.execute(_SQL["stop_backend"], {"pid": pid})).fetchone()
    return row is not None and row[0] is True


async def gateway_views(tx: Transaction) -> list[str]:
    """Return the names, with their schemas, of the views that the gateway's readers see."""
    return [row[0] for row in await (await tx.execute(_SQL["gateway_views"], {})).fetchall()]
