"""Direct logins: a role per organization with which other tools read the organization's rows without the gateway.

A login can lift every limit it sets itself. What holds is what it cannot touch: its rights and row policies, the limits of
connections and temporary files, and a look from outside, again and again, that ends sessions which go too far.
"""

from datetime import datetime
from typing import LiteralString

import msgspec
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from api.store.database import Transaction
from api.store.roles import (
    ReaderError,
    complete_role,
    create_role,
    let_in,
    role_exists,
    role_is_confined,
    set_defaults,
    take_turns,
    unsafe_views,
)
from api.store.statements import load

_SQL = load("direct")

CONNECTIONS = 8
_SETTINGS: dict[LiteralString, LiteralString] = {
    "search_path": "analyst_direct, analyst",
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "2s",
    "work_mem": "16MB",
    "max_parallel_workers_per_gather": "0",
    "client_connection_check_interval": "1s",
}
_OWN: LiteralString = "GRANT {} TO CURRENT_USER WITH INHERIT TRUE, SET FALSE"
_OWN_BEFORE_16: LiteralString = "GRANT {} TO CURRENT_USER"


class Bounds(msgspec.Struct, frozen=True):
    """How far a session may go: seconds of a statement and of a transaction, locks held, and the server's queue of notifications.

    No lock may be of a kind that makes others wait; reading takes none. While more than `queue_share` (0 to 1) of the queue is
    full, no session stays in a transaction.
    """

    statement_seconds: float = 60.0
    transaction_seconds: float = 60.0
    locks: int = 4_000
    queue_share: float = 0.02


class Session(msgspec.Struct, frozen=True):
    """A session of a direct login; `since`: when it connected."""

    pid: int
    since: datetime
    state: str | None


class Ended(msgspec.Struct, frozen=True):
    """A session that went too far: `revoked`, `elsewhere` (in another database), `statement`, `transaction`, `notifications` or `locks`."""

    role: str
    pid: int
    reason: str


async def open_login(tx: Transaction, org_id: int, role: str, password: str) -> bool:
    """Let the role log in with this password, made or completed first; False when it can already. Raise ReaderError."""
    if unsafe := await unsafe_views(tx):
        raise ReaderError(f"{', '.join(unsafe)} would show rows of other organizations")
    await take_turns(tx)
    if await is_open(tx, role):
        return False
    name = sql.Identifier(role)
    if await role_exists(tx, role):
        await _forget_settings(tx, role)
    else:
        await create_role(tx, role, CONNECTIONS)
    if not await role_is_confined(tx, role) or await _number(tx, "may_make_tables", {"role": role}):
        raise ReaderError(
            "the server is not hardened, so a login could reach what is not its own: run workbench migrate"
        )
    if await _number(tx, "prepared_transactions"):
        raise ReaderError("a login could leave prepared transactions behind: set max_prepared_transactions to 0")
    own = _OWN if tx.info.server_version >= 160_000 else _OWN_BEFORE_16
    await tx.execute(sql.SQL(own).format(name))  # what lets us see its sessions, and end them
    if not await set_defaults(tx, role, _SETTINGS):
        raise ReaderError(f"a login could fill the disk; run: GRANT SET ON PARAMETER temp_file_limit TO {tx.info.user}")
    await complete_role(tx, role, org_id, await views(tx))
    await let_in(tx, role, password)
    return True


async def open_logins(tx: Transaction) -> list[tuple[str, int]]:
    """Return the roles that may log in to this database directly, each with its organization."""
    return [(role, org_id) for role, org_id in await (await tx.execute(_SQL["open_logins"])).fetchall()]


async def complete_login(tx: Transaction, role: str, org_id: int) -> None:
    """Show a login the views that came since it was opened; raise ReaderError."""
    if unsafe := await unsafe_views(tx):
        raise ReaderError(f"{', '.join(unsafe)} would show rows of other organizations")
    await take_turns(tx)
    if await is_open(tx, role):
        await complete_role(tx, role, org_id, await views(tx))


async def _forget_settings(tx: Transaction, role: str) -> None:
    """Take back what a former holder of the login set for it, in all databases."""
    name = sql.Identifier(role)
    await tx.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(name))
    for (database,) in await (await tx.execute(_SQL["places_set"], {"role": role})).fetchall():
        await tx.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET ALL").format(name, sql.Identifier(database)))


async def views(tx: Transaction) -> list[str]:
    """Return the names of the views that a direct login sees."""
    return [row[0] for row in await (await tx.execute(_SQL["direct_views"], {})).fetchall()]


async def close_login(tx: Transaction, role: str) -> None:
    """Let the role log in no more; what is connected stays so until `end_sessions`."""
    await tx.execute(sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(sql.Identifier(role)))


async def is_open(tx: Transaction, role: str) -> bool:
    """Return whether there is the role and it may log in."""
    row = await (await tx.execute(_SQL["is_open"], {"role": role})).fetchone()
    return row is not None and row[0] is True


async def sessions(tx: Transaction, role: str) -> list[Session]:
    """Return the role's sessions, oldest first."""
    rows = await (await tx.execute(_SQL["sessions"], {"role": role})).fetchall()
    return [Session(*row) for row in rows]


async def end_sessions(tx: Transaction, role: str) -> set[int]:
    """End all sessions of a role; return the process ids of those there were."""
    row = await (await tx.execute(_SQL["end_sessions"], {"role": role})).fetchone()
    assert row is not None
    return set(row[0])


async def end_excesses(tx: Transaction, bounds: Bounds) -> list[Ended]:
    """End the sessions of direct logins that went too far, and return them."""
    values = {name: getattr(bounds, name) for name in bounds.__struct_fields__}
    rows = await (await tx.execute(_SQL["end_excesses"], values)).fetchall()
    return [Ended(*row) for row in rows]


def address(dsn: str, role: str, password: str) -> str:
    """Return the URL under which the role logs in to the same database."""
    known = conninfo_to_dict(dsn)
    place = {name: str(known[name]) for name in _PLACE if known.get(name)}
    host = place.pop("host", None)
    port, database = place.pop("port", None), place.pop("dbname", None)
    if host is not None and host.startswith("/"):  # a socket's folder
        place |= {"host": host} | ({"port": port} if port else {})
        host = port = None
    url = URL.create("postgresql", role, password, host, int(port) if port else None, database, place)
    return url.render_as_string(hide_password=False)


_PLACE = ("host", "hostaddr", "port", "dbname", "sslmode", "sslrootcert", "channel_binding", "target_session_attrs")


async def _number(tx: Transaction, name: str, values: dict[str, str] | None = None) -> int:
    row = await (await tx.execute(_SQL[name], values)).fetchone()
    assert row is not None
    return int(row[0])
