"""The life of API keys: create, list, roll with overlap, revoke.

The functions that take a `dsn` are whole operator commands; `issue` and `replace` are their hearts, for callers that have
a transaction already.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.access import AccessError, UnknownKeyError, orgs
from api.access.format import CHANCE_BYTES, Kind, make, parse, prefix
from api.access.scopes import choose
from api.access.session import session
from api.clock import to_us, token, uuid7
from api.keyring import Keyring
from api.language.codec import encode
from api.store import access as store
from api.store.access import KeyRow
from api.store.authoring import AuditRow, insert_audit
from api.store.database import Transaction

ROLL_OVERLAP = timedelta(hours=24)
_NAME_LIMIT = 100


async def create(
    dsn: str, keyring: Keyring, org_name: str, kind: Kind, scopes: Sequence[str] | None = None, name: str = ""
) -> str:
    """Create a key and return it, the only time it is ever shown; raise AccessError."""
    async with session(dsn) as (tx, now):
        org_id = await orgs.known(tx, org_name)
        key, row = await issue(tx, keyring, Wish(org_id, org_name, kind, choose(kind, scopes), name), now)
        await note(tx, row, "key.create", None, now)
    return key


async def list_keys(dsn: str, org_name: str) -> list[KeyRow]:
    """Return every key of an organization, oldest first; raise AccessError when there is no such organization."""
    async with session(dsn) as (tx, _):
        return await store.list_keys(tx, await orgs.known(tx, org_name))


async def find(dsn: str, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    """Return the stored row of a key, given the key itself or its id; None when there is none."""
    async with session(dsn) as (tx, _):
        return await _find(tx, keyring, key_or_id)


async def roll(dsn: str, keyring: Keyring, key_or_id: str, overlap: timedelta = ROLL_OVERLAP) -> str:
    """Return a new key like the old one, which keeps working for `overlap`; raise AccessError."""
    async with session(dsn) as (tx, now):
        old = await _known(tx, keyring, key_or_id)
        key, new = await replace(tx, keyring, old, now, overlap)
        await note(tx, old, "key.roll", None, now, {"newKey": new.id, "endsAt": now + overlap})
        return key


async def revoke(dsn: str, keyring: Keyring, key_or_id: str) -> None:
    """End a key; every process notices within 5 s. Raise AccessError when there is no such key."""
    async with session(dsn) as (tx, now):
        row = await _known(tx, keyring, key_or_id)
        await store.revoke_key(tx, row.org_id, row.id, now)
        await note(tx, row, "key.revoke", None, now)


class Wish(msgspec.Struct, frozen=True):
    """What a new key should be."""

    org_id: int
    org_name: str
    kind: Kind
    scopes: tuple[str, ...]
    name: str


async def issue(tx: Transaction, keyring: Keyring, wish: Wish, now: datetime) -> tuple[str, KeyRow]:
    """Make and keep a key; return it with its row."""
    if len(wish.name) > _NAME_LIMIT or not wish.name.isprintable():
        raise AccessError(f"a key's name has at most {_NAME_LIMIT} printable characters")
    key = make(wish.kind, wish.org_name, token(CHANCE_BYTES))
    row = KeyRow(
        org_id=wish.org_id,
        org_name=wish.org_name,
        id=uuid7(to_us(now)),
        kind=wish.kind,
        key_hash=keyring.api_key_hashes(key)[0],
        prefix=prefix(wish.kind, wish.org_name),
        last4=key[-4:],
        name=wish.name,
        scopes=wish.scopes,
        created_at=now,
    )
    await store.insert_key(tx, row)
    return key, row


async def replace(
    tx: Transaction, keyring: Keyring, old: KeyRow, now: datetime, overlap: timedelta
) -> tuple[str, KeyRow]:
    """Make a key like `old` and let `old` end after `overlap`; raise AccessError when it has ended already."""
    if old.revoked_at is not None:
        raise AccessError(f"the key was revoked on {old.revoked_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    if old.expires_at is not None and old.expires_at <= now:
        raise AccessError(f"the key ended on {old.expires_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    kind = msgspec.convert(old.kind, Kind)
    key, row = await issue(tx, keyring, Wish(old.org_id, old.org_name, kind, old.scopes, old.name), now)
    await store.expire_key(tx, old.org_id, old.id, now + overlap)
    return key, row


async def note(
    tx: Transaction, key: KeyRow, action: str, by: str | None, now: datetime, more: dict[str, object] | None = None
) -> None:
    """Keep on record what was done to a key, `by` which; None: by the operator. Never the key itself."""
    detail = {"kind": key.kind, "name": key.name, "scopes": key.scopes} | (more or {})
    row = AuditRow(key.org_id, uuid7(to_us(now)), by, action, key.id, encode(detail).decode(), now)
    await insert_audit(tx, row)


async def _known(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow:
    row = await _find(tx, keyring, key_or_id)
    if row is None:
        raise UnknownKeyError("there is no such key; give the whole key, or its id from: workbench key list --org NAME")
    return row


async def _find(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    if parse(key_or_id) is not None:
        rows = await store.find_keys(tx, keyring.api_key_hashes(key_or_id))
        return rows[0] if rows else None
    return await store.find_key_by_id(tx, key_or_id) if _is_uuid(key_or_id) else None


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and text.count("-") == 4 and set(text) <= set("0123456789abcdefABCDEF-")
