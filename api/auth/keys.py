"""Organizations, API keys and webhook secrets: created, listed, rolled and revoked, by the operator or over the API.

Functions that take a `dsn` are whole operator commands; `issue` and `replace` do the same inside a caller's
transaction. Over the API a workbench key administers the keys of its organization. It cannot grant a scope that it
lacks, and so cannot roll a key that has one, since a roll shows a new key with the rights of the old. It may revoke
any key. Every change is recorded in the audit log with the key that made it, never with the key it is about.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from api.auth import AccessError, BeyondRightsError, UnknownKeyError
from api.auth.key_format import RANDOM_BYTES, Kind, choose, make, parse, prefix
from api.auth.verify import Principal
from api.channels import signing
from api.clock import Clock, from_us, to_us, token, uuid7
from api.crypto import Keyring
from api.store import access as store
from api.store import messages
from api.store.access import KeyRow
from api.store.automations import AuditRow, insert_audit
from api.store.database import Database, Transaction
from api.store.migrate import require_connection
from workbench.language.codec import encode

KeyStatus = Literal["active", "ending", "ended", "revoked"]

ROLL_OVERLAP = timedelta(hours=24)
_MAX_NAME = 100  # characters
_UUID_CHARACTERS = set("0123456789abcdefABCDEF-")
_ORG_NAME = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)


@asynccontextmanager
async def operator_transaction(dsn: str) -> AsyncIterator[tuple[Transaction, datetime]]:
    """Yield a transaction for one operator command, and the database's time; raise DatabaseUnavailableError."""
    await require_connection(dsn)
    database = Database(dsn, size=1)
    await database.open()
    try:
        now = await database.calibrate(Clock())
        async with database.transaction() as tx:
            yield tx, now
    finally:
        await database.close()


async def create_org(dsn: str, name: str) -> int:
    """Create an organization and return its id; raise AccessError for an invalid or existing name."""
    if not _ORG_NAME.fullmatch(name):
        raise AccessError(f"{name!r} is not an organization name; use 1 to 40 of a-z, 0-9 and -")
    async with operator_transaction(dsn) as (tx, now):
        org_id = await store.insert_organization(tx, name, now)
    if org_id is None:
        raise AccessError(f"the organization {name} exists already")
    return org_id


async def find_org(dsn: str, name: str) -> int | None:
    async with operator_transaction(dsn) as (tx, _):
        return await store.find_organization(tx, name)


async def find_org_or_fail(tx: Transaction, name: str) -> int:
    org_id = await store.find_organization(tx, name)
    if org_id is None:
        raise AccessError(f"organization not found: {name}; create it with: workbench org create {name}")
    return org_id


async def create(
    dsn: str, keyring: Keyring, org_name: str, kind: Kind, scopes: Sequence[str] | None = None, name: str = ""
) -> str:
    """Create a key and return it; it cannot be shown again. Raise AccessError."""
    async with operator_transaction(dsn) as (tx, now):
        org_id = await find_org_or_fail(tx, org_name)
        key, row = await issue(tx, keyring, KeySpec(org_id, org_name, kind, choose(kind, scopes), name), now)
        await note_audit(tx, row, "key.create", None, now)
    return key


async def list_keys(dsn: str, org_name: str) -> list[KeyRow]:
    """Return the keys of an organization, oldest first; raise AccessError if the organization does not exist."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.list_keys(tx, await find_org_or_fail(tx, org_name))


async def find(dsn: str, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    """Return the row of a key by the key itself or its id, or None."""
    async with operator_transaction(dsn) as (tx, _):
        return await _find(tx, keyring, key_or_id)


async def roll(dsn: str, keyring: Keyring, key_or_id: str, overlap: timedelta = ROLL_OVERLAP) -> str:
    """Return a new key with the rights of the old one, which works for another `overlap`; raise AccessError."""
    async with operator_transaction(dsn) as (tx, now):
        old = await _find_key_or_fail(tx, keyring, key_or_id)
        key, new = await replace(tx, keyring, old, now, overlap)
        await note_audit(tx, old, "key.roll", None, now, {"newKey": new.id, "endsAt": now + overlap})
        return key


async def revoke(dsn: str, keyring: Keyring, key_or_id: str) -> None:
    """Revoke a key; every process refuses it within 5 s. Raise AccessError if it does not exist."""
    async with operator_transaction(dsn) as (tx, now):
        row = await _find_key_or_fail(tx, keyring, key_or_id)
        await store.revoke_key(tx, row.org_id, row.id, now)
        await note_audit(tx, row, "key.revoke", None, now)


class KeySpec(msgspec.Struct, frozen=True):
    org_id: int
    org_name: str
    kind: Kind
    scopes: tuple[str, ...]
    name: str


async def issue(tx: Transaction, keyring: Keyring, spec: KeySpec, now: datetime) -> tuple[str, KeyRow]:
    if len(spec.name) > _MAX_NAME or not spec.name.isprintable():
        raise AccessError(f"a key's name has at most {_MAX_NAME} printable characters")
    key = make(spec.kind, spec.org_name, token(RANDOM_BYTES))
    row = KeyRow(
        org_id=spec.org_id,
        org_name=spec.org_name,
        id=uuid7(to_us(now)),
        kind=spec.kind,
        key_hash=keyring.api_key_hashes(key)[0],  # the first hash uses the current secret
        prefix=prefix(spec.kind, spec.org_name),
        last4=key[-4:],
        name=spec.name,
        scopes=spec.scopes,
        created_at=now,
    )
    await store.insert_key(tx, row)
    return key, row


async def replace(
    tx: Transaction, keyring: Keyring, old: KeyRow, now: datetime, overlap: timedelta
) -> tuple[str, KeyRow]:
    """Create a key like `old`, and let `old` expire after `overlap`; raise AccessError if it is revoked or expired."""
    if old.revoked_at is not None:
        raise AccessError(f"the key was revoked on {old.revoked_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    if old.expires_at is not None and old.expires_at <= now:
        raise AccessError(f"the key ended on {old.expires_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    kind = msgspec.convert(old.kind, Kind)
    key, row = await issue(tx, keyring, KeySpec(old.org_id, old.org_name, kind, old.scopes, old.name), now)
    await store.expire_key(tx, old.org_id, old.id, now + overlap)
    return key, row


async def note_audit(
    tx: Transaction, key: KeyRow, action: str, by: str | None, now: datetime, extra: dict[str, object] | None = None
) -> None:
    """Record a change of a key in the audit log; `by`: the id of the key that made it, None for the operator."""
    detail = {"kind": key.kind, "name": key.name, "scopes": key.scopes} | (extra or {})
    row = AuditRow(key.org_id, uuid7(to_us(now)), by, action, key.id, encode(detail).decode(), now)
    await insert_audit(tx, row)


async def _find_key_or_fail(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow:
    row = await _find(tx, keyring, key_or_id)
    if row is None:
        raise UnknownKeyError("key not found; give the whole key, or its id from: workbench key list --org NAME")
    return row


async def _find(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    if parse(key_or_id) is not None:
        rows = await store.find_keys(tx, keyring.api_key_hashes(key_or_id))
        return rows[0] if rows else None
    # The column is a uuid, and Postgres rejects other text with an error.
    is_uuid = len(key_or_id) == 36 and key_or_id.count("-") == 4 and set(key_or_id) <= _UUID_CHARACTERS
    return await store.find_key_by_id(tx, key_or_id) if is_uuid else None


class KeyView(msgspec.Struct, frozen=True, rename="camel"):
    """A key without its secret: `key` is its prefix and its last four characters.

    `status` `ending`: the key was rolled and works until `expiresAt`.
    """

    id: str
    kind: str
    key: str
    name: str
    scopes: tuple[str, ...]
    status: KeyStatus
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKeyView(msgspec.Struct, frozen=True):
    """A new key; `secret` is the whole key and is shown only once."""

    secret: str
    key: KeyView


async def list_key_views(database: Database, principal: Principal, now_us: int) -> list[KeyView]:
    async with database.transaction() as tx:
        rows = await store.list_keys(tx, principal.org_id)
    return [_view(row, from_us(now_us)) for row in rows]


async def create_key(
    database: Database,
    keyring: Keyring,
    principal: Principal,
    now_us: int,
    kind: Kind,
    wanted: Sequence[str] | None,
    name: str,
) -> NewKeyView:
    """Create a key; `wanted` None: the default scopes of the kind. Raise AccessError."""
    now, scopes = from_us(now_us), choose(kind, wanted)
    _require_scopes(principal, kind, scopes)
    async with database.transaction() as tx:
        secret, row = await issue(tx, keyring, KeySpec(principal.org_id, principal.org_name, kind, scopes, name), now)
        await note_audit(tx, row, "key.create", principal.key_id, now)
    return NewKeyView(secret, _view(row, now))


async def roll_key(
    database: Database, keyring: Keyring, principal: Principal, now_us: int, key_id: str, overlap: timedelta
) -> NewKeyView:
    """Create a key with the rights of an old one, which works for another `overlap`; raise AccessError."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        old = await _find_in_organization(tx, principal, key_id)
        _require_scopes(principal, old.kind, old.scopes)
        secret, new = await replace(tx, keyring, old, now, overlap)
        await note_audit(tx, old, "key.roll", principal.key_id, now, {"newKey": new.id, "endsAt": now + overlap})
    return NewKeyView(secret, _view(new, now))


async def revoke_key(database: Database, principal: Principal, now_us: int, key_id: str) -> KeyView:
    """Revoke a key; every process refuses it within 5 s. Raise AccessError if it does not exist."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        # Without a check of scopes: an admin with fewer rights must be able to revoke a key that has leaked.
        row = await _find_in_organization(tx, principal, key_id)
        if row.revoked_at is None:
            await store.revoke_key(tx, row.org_id, row.id, now)
            await note_audit(tx, row, "key.revoke", principal.key_id, now)
            row = msgspec.structs.replace(row, revoked_at=now)
    return _view(row, now)


async def _find_in_organization(tx: Transaction, principal: Principal, key_id: str) -> KeyRow:
    row = await store.find_organization_key(tx, principal.org_id, key_id)
    if row is None:
        raise UnknownKeyError("key not found")
    return row


def _require_scopes(principal: Principal, kind: str, scopes: Sequence[str]) -> None:
    # Other kinds cannot exceed the rights of the principal: they may send events or nothing.
    missing = [scope for scope in scopes if scope not in principal.scopes] if kind == "workbench" else []
    if missing:
        raise BeyondRightsError(f"this key cannot grant scopes that it lacks: {', '.join(missing)}")


def _view(row: KeyRow, now: datetime) -> KeyView:
    status: KeyStatus = "active"
    if row.revoked_at is not None:
        status = "revoked"
    elif row.expires_at is not None:
        status = "ending" if now < row.expires_at else "ended"
    return KeyView(
        row.id,
        row.kind,
        f"{row.prefix}…{row.last4}",
        row.name,
        row.scopes,
        status,
        row.created_at,
        row.last_used_at,
        row.expires_at,
        row.revoked_at,
    )


async def webhook_secret(database: Database, keyring: Keyring, org_id: int, now_us: int) -> str:
    """Return the secret that webhooks are signed with; create it on first use."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        secrets = await messages.find_webhook_secrets(tx, keyring, [org_id], now)
        if org_id not in secrets:
            secret = signing.new_secret(token(signing.SECRET_BYTES))
            await messages.insert_webhook_secret(tx, keyring, org_id, secret, now)
            # Read again: another request may have stored a secret before this one, and the first one counts.
            secrets = await messages.find_webhook_secrets(tx, keyring, [org_id], now)
    return secrets[org_id][0]


async def roll_webhook_secret(
    database: Database, keyring: Keyring, principal: Principal, now_us: int
) -> tuple[str, messages.SecretRotation]:
    """Replace the webhook secret and return the new one; for a day webhooks carry signatures by both."""
    now = from_us(now_us)
    roll = messages.SecretRotation(now, now + signing.OVERLAP)
    new = signing.new_secret(token(signing.SECRET_BYTES))
    async with database.transaction() as tx:
        await messages.roll_webhook_secret(tx, keyring, principal.org_id, new, roll)
        await _note_webhook_audit(tx, principal, "webhook_secret.roll", now_us, {"previousUntil": roll.previous_until})
    return new, roll


async def open_endpoint(database: Database, keyring: Keyring, principal: Principal, now_us: int, url: str) -> bool:
    """Reopen a URL that was closed because it answered 410; return whether it was closed."""
    digests = keyring.of(principal.org_id).digests("url", url)
    async with database.transaction() as tx:
        was_closed = await messages.open_endpoint(tx, principal.org_id, digests)
        if was_closed:
            await _note_webhook_audit(tx, principal, "webhook_endpoint.open", now_us, {})
    return was_closed


async def _note_webhook_audit(
    tx: Transaction, principal: Principal, action: str, now_us: int, detail: dict[str, object]
) -> None:
    text = encode(detail).decode()
    await insert_audit(
        tx, AuditRow(principal.org_id, uuid7(now_us), principal.key_id, action, None, text, from_us(now_us))
    )
