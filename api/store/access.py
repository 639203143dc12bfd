"""Organizations and API keys in Postgres: the statements of `sql/queries/access.sql`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from psycopg.rows import kwargs_row

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("access")


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as stored: never the key itself."""

    org_id: int
    org_name: str
    id: str
    kind: str
    key_hash: bytes
    prefix: str
    last4: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


async def insert_organization(tx: Transaction, name: str, created_at: datetime) -> int | None:
    """Create an organization and return its id; None when the name is taken."""
    return await _one(tx, "insert_organization", {"name": name, "created_at": created_at})


async def find_organization(tx: Transaction, name: str) -> int | None:
    """Return the id of an organization."""
    return await _one(tx, "find_organization", {"name": name})


async def insert_key(tx: Transaction, key: KeyRow) -> None:
    """Keep a new API key."""
    values = msgspec.structs.asdict(key)
    await tx.execute(_SQL["insert_key"], values | {"scopes": list(key.scopes)})


async def find_keys(tx: Transaction, key_hashes: Sequence[bytes]) -> list[KeyRow]:
    """Return the keys that have one of the hashes, valid or not."""
    return await _keys(tx, "find_keys", {"key_hashes": list(key_hashes)})


async def find_key_by_id(tx: Transaction, key_id: str) -> KeyRow | None:
    """Return the key with this id."""
    rows = await _keys(tx, "find_key_by_id", {"id": key_id})
    return rows[0] if rows else None


async def find_key_of(tx: Transaction, org_id: int, key_id: str) -> KeyRow | None:
    """Return the key of an organization with this id."""
    rows = await _keys(tx, "find_key_of", {"org_id": org_id, "id": key_id})
    return rows[0] if rows else None


async def list_keys(tx: Transaction, org_id: int) -> list[KeyRow]:
    """Return every key of an organization, oldest first."""
    return await _keys(tx, "list_keys", {"org_id": org_id})


async def expire_key(tx: Transaction, org_id: int, key_id: str, expires_at: datetime) -> None:
    """Let a key end at `expires_at`, or earlier if that was already so."""
    await tx.execute(_SQL["expire_key"], {"org_id": org_id, "id": key_id, "expires_at": expires_at})


async def revoke_key(tx: Transaction, org_id: int, key_id: str, revoked_at: datetime) -> None:
    """End a key; an earlier revocation stays."""
    await tx.execute(_SQL["revoke_key"], {"org_id": org_id, "id": key_id, "revoked_at": revoked_at})


async def touch_key(tx: Transaction, org_id: int, key_id: str, used_at: datetime) -> None:
    """Remember a use, unless one of the last minute is on record."""
    await tx.execute(_SQL["touch_key"], {"org_id": org_id, "id": key_id, "used_at": used_at})


async def _one(tx: Transaction, name: str, values: dict[str, Any]) -> int | None:
    row = await (await tx.execute(_SQL[name], values)).fetchone()
    return None if row is None else int(row[0])


async def _keys(tx: Transaction, name: str, values: dict[str, Any]) -> list[KeyRow]:
    async with tx.cursor(row_factory=kwargs_row(_key_row)) as cursor:
        await cursor.execute(_SQL[name], values)
        return await cursor.fetchall()


def _key_row(**columns: Any) -> KeyRow:
    return KeyRow(**columns | {"scopes": tuple(columns["scopes"])})
