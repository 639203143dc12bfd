"""Suppressions, webhook secrets and closed endpoints: the statements of `sql/queries/delivery.sql`.

Addresses come as blind indexes, 16 bytes in hex with or without hyphens, and go out in hex without them.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from api.keyring import INDEX, Keyring
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("delivery")

Channel: TypeAlias = Literal["email"]
Addressed: TypeAlias = tuple[int, str]
"""An organization and the blind index of an address."""


class Roll(msgspec.Struct, frozen=True):
    """When a secret was replaced, and how long the one before signs, too."""

    at: datetime
    previous_until: datetime


async def suppress(tx: Transaction, org_id: int, channel: Channel, address_digest: str, now: datetime) -> None:
    """Send an address no more messages of a channel, because its owner said so by the link in one."""
    values = {"org_id": org_id, "channel": channel, "address_digests": _indexes(address_digest)}
    await tx.execute(_SQL["suppress"], values | {"reason": "unsubscribed", "created_at": now})


async def suppressed(tx: Transaction, channel: Channel, addresses: Collection[Addressed]) -> set[Addressed]:
    """Return those of the addresses that get no more messages of a channel."""
    values = {"channel": channel, **_columns("address_digests", addresses)}
    return await _addressed(tx, "suppressed", values)


async def insert_webhook_secret(tx: Transaction, keyring: Keyring, org_id: int, secret: str, now: datetime) -> None:
    """Give an organization its first secret, unless it has one."""
    sealed = keyring.of(org_id).seal_webhook_secret(secret)
    await tx.execute(_SQL["insert_webhook_secret"], {"org_id": org_id, "secret": sealed, "created_at": now})


async def roll_webhook_secret(tx: Transaction, keyring: Keyring, org_id: int, secret: str, roll: Roll) -> None:
    """Replace the secret; the one before signs, too, until the roll is over."""
    sealed = keyring.of(org_id).seal_webhook_secret(secret)
    values = {"org_id": org_id, "secret": sealed, "created_at": roll.at, "previous_until": roll.previous_until}
    await tx.execute(_SQL["roll_webhook_secret"], values)


async def webhook_secrets(
    tx: Transaction, keyring: Keyring, org_ids: Collection[int], now: datetime
) -> dict[int, tuple[str, ...]]:
    """Return what deliveries of these organizations are signed with now, the newest first; none for who never had any."""
    cursor = await tx.execute(_SQL["webhook_secrets"], {"org_ids": list(org_ids), "now": now})
    return {
        org_id: tuple(keyring.of(org_id).open_webhook_secret(each) for each in sealed if each is not None)
        for org_id, *sealed in await cursor.fetchall()
    }


async def close_endpoint(tx: Transaction, org_id: int, url_digest: str, host: str, now: datetime) -> None:
    """Send nothing more to a webhook address."""
    values = {"org_id": org_id, "url_digests": _indexes(url_digest), "host": host, "closed_at": now}
    await tx.execute(_SQL["close_endpoint"], values)


async def open_endpoint(tx: Transaction, org_id: int, url_digest: str) -> bool:
    """Send to a webhook address again; return whether it was closed."""
    cursor = await tx.execute(_SQL["open_endpoint"], {"org_id": org_id, "url_digests": _indexes(url_digest)})
    return await cursor.fetchone() is not None


async def closed_endpoints(tx: Transaction, addresses: Collection[Addressed]) -> set[Addressed]:
    """Return those of the webhook addresses that are closed."""
    return await _addressed(tx, "closed_endpoints", _columns("url_digests", addresses))


def _indexes(digests: str) -> list[str]:
    """Return the blind indexes in a text of one or several (`OrgKeys.digests`)."""
    return [digests[at : at + INDEX] for at in range(0, len(digests), INDEX)]


def _columns(name: str, addresses: Collection[Addressed]) -> dict[str, Any]:
    return {"org_ids": [org_id for org_id, _ in addresses], name: [digest for _, digest in addresses]}


async def _addressed(tx: Transaction, name: str, values: dict[str, Any]) -> set[Addressed]:
    rows = await (await tx.execute(_SQL[name], values)).fetchall()
    return {(org_id, digest.replace("-", "")) for org_id, digest in rows}
