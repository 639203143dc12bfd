"""Keys of an organization, administered by one of its own keys.

A workbench key gives away no scope that it lacks, and rolls no key that has one: a roll shows a new key with the rights of the old.
Revoking is always allowed. Every change is on record, with the key that asked for it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from api.access import BeyondRightsError, UnknownKeyError
from api.access.format import Kind
from api.access.keys import Wish, issue, note, replace
from api.access.scopes import choose
from api.access.verify import Principal
from api.clock import from_us
from api.keyring import Keyring
from api.store import access as store
from api.store.access import KeyRow
from api.store.database import Database

Standing = Literal["active", "ending", "ended", "revoked"]


class KeyView(msgspec.Struct, frozen=True, rename="camel"):
    """A key as it may be shown: `key` has its beginning and its last four characters. `ending`: it was rolled, and works until then."""

    id: str
    kind: str
    key: str
    name: str
    scopes: tuple[str, ...]
    standing: Standing
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKeyView(msgspec.Struct, frozen=True):
    """A new key, with `secret` whole, the only time it is shown."""

    secret: str
    key: KeyView


async def list_keys(database: Database, who: Principal, now_us: int) -> list[KeyView]:
    """Return every key of the organization, oldest first."""
    async with database.transaction() as tx:
        rows = await store.list_keys(tx, who.org_id)
    return [_view(row, from_us(now_us)) for row in rows]


async def create(
    database: Database, keyring: Keyring, who: Principal, now_us: int, asked: tuple[Kind, Sequence[str] | None, str]
) -> NewKeyView:
    """Make a key of a kind with scopes (None: the usual ones) and a name; raise AccessError."""
    kind, wanted, name = asked
    now, scopes = from_us(now_us), choose(kind, wanted)
    _must_have(who, kind, scopes)
    async with database.transaction() as tx:
        secret, row = await issue(tx, keyring, Wish(who.org_id, who.org_name, kind, scopes, name), now)
        await note(tx, row, "key.create", who.key_id, now)
    return NewKeyView(secret, _view(row, now))


async def roll(
    database: Database, keyring: Keyring, who: Principal, now_us: int, key_id: str, overlap: timedelta
) -> NewKeyView:
    """Make a key like an old one, which works for `overlap` from now on; raise AccessError."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        old = _known(await store.find_key_of(tx, who.org_id, key_id))
        _must_have(who, old.kind, old.scopes)
        secret, new = await replace(tx, keyring, old, now, overlap)
        await note(tx, old, "key.roll", who.key_id, now, {"newKey": new.id, "endsAt": now + overlap})
    return NewKeyView(secret, _view(new, now))


async def revoke(database: Database, who: Principal, now_us: int, key_id: str) -> KeyView:
    """End a key; every process notices within five seconds. Raise AccessError when there is none."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        row = _known(await store.find_key_of(tx, who.org_id, key_id))
        if row.revoked_at is None:
            await store.revoke_key(tx, row.org_id, row.id, now)
            await note(tx, row, "key.revoke", who.key_id, now)
            row = msgspec.structs.replace(row, revoked_at=now)
    return _view(row, now)


def _known(row: KeyRow | None) -> KeyRow:
    if row is None:
        raise UnknownKeyError("there is no such key")
    return row


def _must_have(who: Principal, kind: str, scopes: Sequence[str]) -> None:
    missing = [scope for scope in scopes if scope not in who.scopes] if kind == "workbench" else []
    if missing:
        raise BeyondRightsError(f"this key cannot give away what it lacks: {', '.join(missing)}")


def _view(row: KeyRow, now: datetime) -> KeyView:
    return KeyView(
        row.id,
        row.kind,
        f"{row.prefix}…{row.last4}",
        row.name,
        row.scopes,
        _standing(row, now),
        row.created_at,
        row.last_used_at,
        row.expires_at,
        row.revoked_at,
    )


def _standing(row: KeyRow, now: datetime) -> Standing:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is None:
        return "active"
    return "ending" if now < row.expires_at else "ended"
