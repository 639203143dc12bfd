"""Messages: outgoing ones, in-app inboxes, suppressions, webhook secrets and endpoints, test sends, and usage.

Addresses are passed as blind indexes: 16 bytes in hex with or without hyphens; results have them in hex without.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from api.crypto import INDEX, Keyring
from api.store.database import Transaction, load
from api.store.query import Call, joined, nothing, plain, quoted, run, statements

_SQL = load("messages")

_CALLS = statements("messages")


# --- Outgoing emails and webhooks

OutboxChannel: TypeAlias = Literal["email", "webhook"]
DeliveryStatus: TypeAlias = Literal["queued", "sent", "failed", "skipped", "unknown"]


class OutgoingRow(msgspec.Struct, frozen=True):
    """One email or webhook; `recipient` is a sealed address or a URL, `token` belongs to the claim that sends it."""

    id: str
    contact_id: str
    automation_id: str
    entry_id: str
    node_id: str
    token: int
    channel: OutboxChannel
    recipient: str
    subject: str | None
    body: str
    html: bool


class StoredMessage(msgspec.Struct, frozen=True):
    """The message to send, as it was first stored. `opted_out`: its contact has opted out of the channel."""

    id: str
    channel: OutboxChannel
    recipient: str
    subject: str | None
    body: str
    html: bool
    created_at: datetime
    opted_out: bool


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt: the message's new status, and the outcome to record (None: nothing was attempted).

    If an earlier attempt may have arrived, a failed or skipped message becomes `unknown` in both (see
    `settle_outgoing`).
    """

    status: DeliveryStatus
    outcome: Literal["sent", "retrying", "failed", "skipped", "unknown"] | None
    reason: str | None = None


class SkippedMessageRow(msgspec.Struct, frozen=True):
    """A message that is not sent at all; `cause` is the reason, in one word."""

    id: str
    contact_id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    cause: str


def add_outgoing(org_id: int, rows: Sequence[OutgoingRow], at: datetime) -> Call[None]:
    """Store messages that are not stored yet."""
    return Call(
        _CALLS["add_outgoing"],
        nothing,
        org_id=org_id,
        at=at,
        ids=plain(row.id for row in rows),
        contact_ids=plain(row.contact_id for row in rows),
        automation_ids=plain(row.automation_id for row in rows),
        entry_ids=plain(row.entry_id for row in rows),
        node_ids=quoted([row.node_id for row in rows]),
        channels=plain(row.channel for row in rows),
        recipients=quoted([row.recipient for row in rows]),
        subjects=quoted([row.subject for row in rows]),
        bodies=quoted([row.body for row in rows]),
        htmls=plain("t" if row.html else "f" for row in rows),
    )


def claim_outgoing(org_id: int, rows: Sequence[OutgoingRow]) -> Call[dict[str, StoredMessage]]:
    """Start sending messages, by id; messages that were sent before are left out."""
    return Call(
        _CALLS["claim_outgoing"],
        lambda stored: {row[0]: StoredMessage(*row) for row in stored},
        org_id=org_id,
        ids=plain(row.id for row in rows),
        tokens=plain(row.token for row in rows),
    )


def settle_outgoing(org_id: int, message_id: str, token: int, result: AttemptResult, at: datetime) -> Call[None]:
    """Record the result of an attempt, unless another claim has taken the message since."""
    values = msgspec.structs.asdict(result)
    return Call(_CALLS["settle_outgoing"], nothing, org_id=org_id, id=message_id, token=token, at=at, **values)


def abandon_outgoing(org_id: int, entry_ids: Collection[str], at: datetime) -> Call[None]:
    """Give up the unsent messages of entries that have ended."""
    return Call(_CALLS["abandon_outgoing"], nothing, org_id=org_id, entry_ids=plain(entry_ids), at=at)


def add_skipped_messages(org_id: int, rows: Sequence[SkippedMessageRow], at: datetime) -> Call[None]:
    return Call(
        _CALLS["add_skipped_messages"],
        nothing,
        org_id=org_id,
        at=at,
        ids=plain(row.id for row in rows),
        contact_ids=plain(row.contact_id for row in rows),
        automation_ids=plain(row.automation_id for row in rows),
        entry_ids=plain(row.entry_id for row in rows),
        node_ids=quoted([row.node_id for row in rows]),
        channels=plain(row.channel for row in rows),
        causes=plain(row.cause for row in rows),
    )


# --- In-app messages

InboxKey = tuple[int, str]  # organization, wallet
KeyRef = tuple[int, str]  # organization, id of an API key


class Challenge(msgspec.Struct, frozen=True):
    """The values in the text that a wallet must sign."""

    wallet: str
    key_id: str
    origin: str
    chain_id: int
    expires_at: datetime


class WaitingMessage(msgspec.Struct, frozen=True):
    """A message that a wallet has not acknowledged; `extra` is JSON text."""

    id: str
    title: str
    body: str
    extra: bytes | None
    created_at: datetime


class Acknowledgement(msgspec.Struct, frozen=True):
    inbox: InboxKey
    id: str


async def list_origins(tx: Transaction, org_id: int) -> tuple[str, ...]:
    """Return the web origins that may ask for an organization's messages."""
    row = await (await tx.execute(_SQL["list_origins"], {"org_id": org_id})).fetchone()
    return () if row is None else tuple(row[0])


async def add_origin(tx: Transaction, org_id: int, origin: str) -> bool:
    """Allow an origin; return whether it was new."""
    return (await tx.execute(_SQL["add_origin"], {"org_id": org_id, "origin": origin})).rowcount == 1


async def remove_origin(tx: Transaction, org_id: int, origin: str) -> bool:
    """Disallow an origin; return whether it was allowed."""
    return (await tx.execute(_SQL["remove_origin"], {"org_id": org_id, "origin": origin})).rowcount == 1


async def add_challenge(tx: Transaction, org_id: int, nonce: str, challenge: Challenge) -> None:
    await tx.execute(_SQL["add_challenge"], msgspec.structs.asdict(challenge) | {"org_id": org_id, "nonce": nonce})


async def delete_expired_challenges(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return (
        await tx.execute(_SQL["delete_expired_challenges"], {"org_id": org_id, "now": now, "limit": limit})
    ).rowcount


async def take_challenge(tx: Transaction, org_id: int, nonce: str) -> Challenge | None:
    """Delete a challenge and return it, or None if it does not exist or another request took it first."""
    return await tx.fetch_one(Challenge, _SQL["take_challenge"], {"org_id": org_id, "nonce": nonce})


async def find_valid_keys(tx: Transaction, keys: Collection[KeyRef], now: datetime) -> dict[KeyRef, tuple[str, ...]]:
    """Return the keys that are still valid, with the origins of their organizations."""
    values = {"org_ids": [org_id for org_id, _ in keys], "key_ids": [key_id for _, key_id in keys], "now": now}
    cursor = await tx.execute(_SQL["find_valid_keys"], values)
    return {(org_id, key_id): tuple(origins) async for org_id, key_id, origins in cursor}


async def read_inboxes(
    tx: Transaction, inboxes: Sequence[InboxKey], under_way: Collection[str], limit: int
) -> list[tuple[InboxKey, WaitingMessage]]:
    """Return up to `limit` waiting messages of each inbox, oldest first, without those in `under_way`."""
    wallets: defaultdict[int, list[str]] = defaultdict(list)
    for org_id, wallet in inboxes:
        wallets[org_id].append(wallet)
    # One call per organization: every statement names one `org_id`, which also selects the node on Citus.
    inbox_rows = await run(
        tx,
        *(
            Call(
                _CALLS["read_inboxes"],
                list,
                org_id=org_id,
                wallets=quoted(org_wallets),
                under_way=joined(list(under_way)),
                limit=limit,
            )
            for org_id, org_wallets in wallets.items()
        ),
    )
    return [
        ((org_id, wallet), WaitingMessage(*columns))
        for org_id, rows in zip(wallets, inbox_rows, strict=True)
        for wallet, *columns in rows
    ]


async def acknowledge(tx: Transaction, acknowledgements: Collection[Acknowledgement], now: datetime) -> None:
    values = {
        "org_ids": [item.inbox[0] for item in acknowledgements],
        "ids": [item.id for item in acknowledgements],
        "wallets": [item.inbox[1] for item in acknowledgements],
        "now": now,
    }
    await tx.execute(_SQL["acknowledge"], values)


async def find_inbox_channel(connection: AsyncConnection[TupleRow]) -> str:
    """Return the channel that announces waiting messages."""
    # Its name is random and stored, because direct logins may LISTEN to any channel that they can name.
    row = await (await connection.execute(_SQL["find_inbox_channel"])).fetchone()
    assert row is not None
    return str(row[0])


def announce_messages(org_id: int, wallets: Collection[str]) -> Call[None]:
    """Tell every API process, when the transaction commits, that these wallets have waiting messages."""
    return Call(_CALLS["announce_messages"], nothing, org_id=org_id, wallets=quoted(list(wallets)))


def wallet_mark(wallet: str) -> str:
    """Return the mark of a wallet in a notification: the beginning of its MD5, as in `announce_messages`."""
    return hashlib.md5(wallet.encode(), usedforsecurity=False).hexdigest()[:16]


# --- Suppressions, webhook secrets and endpoints

SuppressedChannel: TypeAlias = Literal["email"]
AddressKey: TypeAlias = tuple[int, str]  # organization, blind index of an address


class SecretRotation(msgspec.Struct, frozen=True):
    """When a webhook secret was replaced, and until when the previous one still signs."""

    at: datetime
    previous_until: datetime


async def suppress(
    tx: Transaction, org_id: int, channel: SuppressedChannel, address_digest: str, now: datetime
) -> None:
    """Stop messages of a channel to an address, because its owner unsubscribed."""
    values = {"org_id": org_id, "channel": channel, "address_digests": _indexes(address_digest)}
    await tx.execute(_SQL["suppress"], values | {"reason": "unsubscribed", "created_at": now})


async def find_suppressed(
    tx: Transaction, channel: SuppressedChannel, addresses: Collection[AddressKey]
) -> set[AddressKey]:
    """Return the addresses that get no more messages of a channel."""
    values = {"channel": channel, **_columns("address_digests", addresses)}
    return await _addressed(tx, "find_suppressed", values)


async def insert_webhook_secret(tx: Transaction, keyring: Keyring, org_id: int, secret: str, now: datetime) -> None:
    """Store an organization's first webhook secret, unless it has one."""
    sealed = keyring.of(org_id).seal_webhook_secret(secret)
    await tx.execute(_SQL["insert_webhook_secret"], {"org_id": org_id, "secret": sealed, "created_at": now})


async def roll_webhook_secret(
    tx: Transaction, keyring: Keyring, org_id: int, secret: str, rotation: SecretRotation
) -> None:
    """Replace the webhook secret; the previous one signs, too, until the rotation ends."""
    sealed = keyring.of(org_id).seal_webhook_secret(secret)
    values = {"org_id": org_id, "secret": sealed, "created_at": rotation.at, "previous_until": rotation.previous_until}
    await tx.execute(_SQL["roll_webhook_secret"], values)


async def find_webhook_secrets(
    tx: Transaction, keyring: Keyring, org_ids: Collection[int], now: datetime
) -> dict[int, tuple[str, ...]]:
    """Return the secrets that sign webhooks now, newest first, by organization; those without a secret are left out."""
    cursor = await tx.execute(_SQL["find_webhook_secrets"], {"org_ids": list(org_ids), "now": now})
    return {
        org_id: tuple(keyring.of(org_id).open_webhook_secret(secret) for secret in sealed if secret is not None)
        for org_id, *sealed in await cursor.fetchall()
    }


async def close_endpoint(tx: Transaction, org_id: int, url_digest: str, host: str, now: datetime) -> None:
    """Send nothing more to a webhook URL."""
    values = {"org_id": org_id, "url_digests": _indexes(url_digest), "host": host, "closed_at": now}
    await tx.execute(_SQL["close_endpoint"], values)


async def open_endpoint(tx: Transaction, org_id: int, url_digest: str) -> bool:
    """Send to a webhook URL again; return whether it was closed."""
    cursor = await tx.execute(_SQL["open_endpoint"], {"org_id": org_id, "url_digests": _indexes(url_digest)})
    return await cursor.fetchone() is not None


async def find_closed_endpoints(tx: Transaction, addresses: Collection[AddressKey]) -> set[AddressKey]:
    return await _addressed(tx, "find_closed_endpoints", _columns("url_digests", addresses))


def _indexes(digests: str) -> list[str]:
    """Split a text of one or several blind indexes (`OrgKeys.digests`)."""
    return [digests[start : start + INDEX] for start in range(0, len(digests), INDEX)]


def _columns(name: str, addresses: Collection[AddressKey]) -> dict[str, Any]:
    return {"org_ids": [org_id for org_id, _ in addresses], name: [digest for _, digest in addresses]}


async def _addressed(tx: Transaction, name: str, values: dict[str, Any]) -> set[AddressKey]:
    rows = await (await tx.execute(_SQL[name], values)).fetchall()
    return {(org_id, digest.replace("-", "")) for org_id, digest in rows}


# --- Test sends

TEST_PUSH_RETENTION = timedelta(days=1)


class TestPushRow(msgspec.Struct, frozen=True):
    """An in-app message for a wallet; `extra` is JSON text, `contact_id` the contact that its texts may mention."""

    org_id: int
    id: str
    contact_id: str | None
    wallet: str
    title: str
    body: str
    extra: str
    created_at: datetime


async def find_published_urls(tx: Transaction, org_id: int) -> list[str]:
    """Return the webhook URLs in published automations, as templates."""
    return [row[0] async for row in await tx.execute(_SQL["find_published_urls"], {"org_id": org_id})]


async def count_test_sends(tx: Transaction, org_id: int, since_id: str) -> int:
    """Count the test sends since a time, given as an id of that time."""
    return int(await tx.fetch_value(_SQL["count_test_sends"], {"org_id": org_id, "since_id": since_id}))


async def add_test_push(tx: Transaction, push: TestPushRow) -> None:
    """Store an in-app message for a wallet, apart from the messages that are counted."""
    await tx.execute(_SQL["add_test_push"], msgspec.structs.asdict(push))


async def find_old_test_pushes(tx: Transaction, now: datetime) -> list[int]:
    """Return the organizations that have test messages older than a day."""
    return [
        row[0] async for row in await tx.execute(_SQL["find_old_test_pushes"], {"before": now - TEST_PUSH_RETENTION})
    ]


async def delete_old_test_pushes(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    values = {"org_id": org_id, "before": now - TEST_PUSH_RETENTION, "limit": limit}
    return (await tx.execute(_SQL["delete_old_test_pushes"], values)).rowcount


# --- Usage


async def count_sent(tx: Transaction, org_id: int, since: datetime, until: datetime) -> dict[str, int]:
    """Count the messages sent from `since` until before `until`, by channel; channels without any are left out."""
    values = {"org_id": org_id, "since": since, "until": until}
    return {channel: count async for channel, count in await tx.execute(_SQL["count_sent"], values)}
