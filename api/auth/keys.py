"""Organizations, API keys and webhook secrets: created, listed, rolled and revoked, by the operator or over the API.

Functions that take a `dsn` are operator commands; the others serve the API. Over the API a workbench key administers
the keys of its organization. It cannot grant a scope that it lacks. It therefore cannot roll a key with such a scope,
because a roll returns a new key with the same rights. It may revoke any key. Every change is recorded in the audit log
with the key that made it, never with the key that was changed.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

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
from api.store.automations import record_change
from api.store.database import Database, Transaction
from api.store.migrate import require_connection
from workbench.language.body import is_id
from workbench.language.responses import KeyStatus, KeyView

ROLL_OVERLAP = timedelta(hours=24)
_MAX_NAME = 100  # characters
_INGEST_KINDS = ("live", "test")
_ORG_NAME = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)


@asynccontextmanager
async def operator_transaction(dsn: str) -> AsyncIterator[tuple[Transaction, datetime]]:
    """Yield a transaction for one operator command, and the database's time; raise DatabaseUnavailableError."""
    await require_connection(dsn)
    async with Database(dsn, size=1) as database:
        now = await database.calibrate(Clock())
        async with database.transaction() as tx:
            yield tx, now


async def create_org(dsn: str, name: str) -> int:
    """Create an organization and return its id; raise AccessError for an invalid or existing name."""
    if not _ORG_NAME.fullmatch(name):
        raise AccessError(f"{name!r} is not an organization name; use 1 to 40 of a-z, 0-9 and -")
    async with operator_transaction(dsn) as (tx, now):
        org_id = await store.insert_organization(tx, name, now)
    if org_id is None:
        raise AccessError(f"the organization {name} already exists")
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
    dsn: str,
    keyring: Keyring,
    org_name: str,
    kind: Kind,
    scopes: Sequence[str] | None = None,
    name: str = "",
    strict: bool = False,
) -> str:
    """Create a key and return it; it cannot be shown again. Raise AccessError."""
    async with operator_transaction(dsn) as (tx, now):
        org_id = await find_org_or_fail(tx, org_name)
        spec = KeySpec(org_id, org_name, kind, choose(kind, scopes), name, strict)
        return (await _create(tx, keyring, spec, now, None)).secret


async def list_keys(dsn: str, org_name: str) -> list[KeyRow]:
    """Return the keys of an organization, oldest first; raise AccessError if the organization does not exist."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.list_keys(tx, await find_org_or_fail(tx, org_name))


async def find(dsn: str, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    """Return the row of a key by the key itself or its id, or None."""
    async with operator_transaction(dsn) as (tx, _):
        return await _find(tx, keyring, key_or_id)


async def roll(dsn: str, keyring: Keyring, key_or_id: str, overlap: timedelta = ROLL_OVERLAP) -> str:
    """Return a new key with the rights of the old one, which keeps working for `overlap`; raise AccessError."""
    async with operator_transaction(dsn) as (tx, now):
        old = await _find_key_or_fail(tx, keyring, key_or_id)
        return (await _roll(tx, keyring, old, overlap, now, None)).secret


async def edit(dsn: str, keyring: Keyring, key_or_id: str, strict: bool) -> None:
    """Let a key refuse events with unknown fields, or accept them; raise AccessError."""
    async with operator_transaction(dsn) as (tx, now):
        await _edit(tx, await _find_key_or_fail(tx, keyring, key_or_id), strict, now, None)


async def revoke(dsn: str, keyring: Keyring, key_or_id: str) -> None:
    """Revoke a key; every process refuses it within 5 s. Raise AccessError if it does not exist."""
    async with operator_transaction(dsn) as (tx, now):
        await _revoke(tx, await _find_key_or_fail(tx, keyring, key_or_id), now, None)


class KeySpec(msgspec.Struct, frozen=True):
    """A key to create. `strict`: it refuses events with unknown fields."""

    org_id: int
    org_name: str
    kind: Kind
    scopes: tuple[str, ...]
    name: str
    strict: bool = False


# `by` is the id of the key that makes a change; None for the operator.


async def _create(tx: Transaction, keyring: Keyring, spec: KeySpec, now: datetime, by: str | None) -> "NewKeyView":
    secret, row = await issue(tx, keyring, spec, now)
    await _note_audit(tx, row, "key.create", by, now)
    return NewKeyView(secret, _view(row, now))


async def issue(tx: Transaction, keyring: Keyring, spec: KeySpec, now: datetime) -> tuple[str, KeyRow]:
    if len(spec.name) > _MAX_NAME or not spec.name.isprintable():
        raise AccessError(f"a key's name has at most {_MAX_NAME} printable characters")
    if spec.strict:
        _require_ingest(spec.kind)
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
        strict=spec.strict,
    )
    await store.insert_key(tx, row)
    return key, row


async def _roll(
    tx: Transaction, keyring: Keyring, old: KeyRow, overlap: timedelta, now: datetime, by: str | None
) -> "NewKeyView":
    if old.revoked_at is not None:
        raise AccessError(f"the key was revoked on {old.revoked_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    if old.expires_at is not None and old.expires_at <= now:
        raise AccessError(f"the key ended on {old.expires_at:%Y-%m-%d %H:%M} UTC; create a new one instead")
    kind = msgspec.convert(old.kind, Kind)
    spec = KeySpec(old.org_id, old.org_name, kind, old.scopes, old.name, old.strict)
    secret, new = await issue(tx, keyring, spec, now)
    await store.expire_key(tx, old.org_id, old.id, now + overlap)
    await _note_audit(tx, old, "key.roll", by, now, {"newKey": new.id, "endsAt": now + overlap})
    return NewKeyView(secret, _view(new, now))


async def _edit(tx: Transaction, row: KeyRow, strict: bool, now: datetime, by: str | None) -> KeyView:
    _require_ingest(row.kind)
    if strict != row.strict:
        await store.set_strict(tx, row.org_id, row.id, strict)
        row = msgspec.structs.replace(row, strict=strict)
        await _note_audit(tx, row, "key.edit", by, now)
    return _view(row, now)


def _require_ingest(kind: str) -> None:
    if kind not in _INGEST_KINDS:
        raise AccessError("strict concerns events, so only live and test keys can have it")


async def _revoke(tx: Transaction, row: KeyRow, now: datetime, by: str | None) -> KeyView:
    if row.revoked_at is None:
        await store.revoke_key(tx, row.org_id, row.id, now)
        await _note_audit(tx, row, "key.revoke", by, now)
        row = msgspec.structs.replace(row, revoked_at=now)
    return _view(row, now)


async def _note_audit(
    tx: Transaction, key: KeyRow, action: str, by: str | None, now: datetime, extra: dict[str, object] | None = None
) -> None:
    detail = {"kind": key.kind, "name": key.name, "scopes": key.scopes, "strict": key.strict} | (extra or {})
    await record_change(tx, key.org_id, by, action, key.id, detail, to_us(now))


async def _find_key_or_fail(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow:
    row = await _find(tx, keyring, key_or_id)
    if row is None:
        raise UnknownKeyError("key not found; pass the full key, or its id from: workbench key list --org NAME")
    return row


async def _find(tx: Transaction, keyring: Keyring, key_or_id: str) -> KeyRow | None:
    if parse(key_or_id) is not None:
        rows = await store.find_keys(tx, keyring.api_key_hashes(key_or_id))
        return rows[0] if rows else None
    # The column is a uuid, and Postgres rejects other text with an error.
    return await store.find_key_by_id(tx, key_or_id) if is_id(key_or_id) else None


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
    strict: bool,
) -> NewKeyView:
    """Create a key; `wanted` None: the default scopes of the kind. Raise AccessError."""
    spec = KeySpec(principal.org_id, principal.org_name, kind, choose(kind, wanted), name, strict)
    _require_scopes(principal, kind, spec.scopes)
    async with database.transaction() as tx:
        return await _create(tx, keyring, spec, from_us(now_us), principal.key_id)


async def roll_key(
    database: Database, keyring: Keyring, principal: Principal, now_us: int, key_id: str, overlap: timedelta
) -> NewKeyView:
    """Create a key with the rights of an old one; the old key keeps working for `overlap`. Raise AccessError."""
    async with database.transaction() as tx:
        old = await _find_in_organization(tx, principal, key_id)
        _require_scopes(principal, old.kind, old.scopes)
        return await _roll(tx, keyring, old, overlap, from_us(now_us), principal.key_id)


async def edit_key(database: Database, principal: Principal, now_us: int, key_id: str, strict: bool) -> KeyView:
    """Let a key refuse events with unknown fields, or accept them; raise AccessError, UnknownKeyError."""
    async with database.transaction() as tx:
        row = await _find_in_organization(tx, principal, key_id)
        return await _edit(tx, row, strict, from_us(now_us), principal.key_id)


async def revoke_key(database: Database, principal: Principal, now_us: int, key_id: str) -> KeyView:
    """Revoke a key; every process refuses it within 5 s. Raise AccessError if it does not exist."""
    async with database.transaction() as tx:
        # Without a check of scopes: an admin with fewer rights must be able to revoke a key that has leaked.
        return await _revoke(tx, await _find_in_organization(tx, principal, key_id), from_us(now_us), principal.key_id)


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
        row.strict,
    )


async def webhook_secret(database: Database, keyring: Keyring, org_id: int, now_us: int) -> str:
    """Return the secret that webhooks are signed with; create it on first use."""
    async with database.transaction() as tx:
        return (await signing.find_secrets(tx, keyring, org_id, from_us(now_us)))[0]


async def roll_webhook_secret(
    database: Database, keyring: Keyring, principal: Principal, now_us: int
) -> tuple[str, datetime]:
    """Replace the webhook secret; return the new one, and until when webhooks carry signatures by both."""
    now = from_us(now_us)
    previous_until = now + signing.OVERLAP
    new = signing.new_secret(token(signing.SECRET_BYTES))
    async with database.transaction() as tx:
        await messages.roll_webhook_secret(tx, keyring, principal.org_id, new, now, previous_until)
        detail = {"previousUntil": previous_until}
        await record_change(tx, principal.org_id, principal.key_id, "webhook_secret.roll", None, detail, now_us)
    return new, previous_until


async def open_endpoint(database: Database, keyring: Keyring, principal: Principal, now_us: int, url: str) -> bool:
    """Reopen a URL that was closed because it answered 410; return whether it was closed."""
    digests = keyring.of(principal.org_id).digests("url", url)
    async with database.transaction() as tx:
        was_closed = await messages.open_endpoint(tx, principal.org_id, digests)
        if was_closed:
            await record_change(tx, principal.org_id, principal.key_id, "webhook_endpoint.open", None, {}, now_us)
    return was_closed
