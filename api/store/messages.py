"""Messages: outgoing ones, in-app inboxes, suppressions, webhook secrets and endpoints, test sends, and usage.

Addresses are passed as blind indexes: 16 bytes in hex with or without hyphens; results have them in hex without.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from api.crypto import Keyring, OrgKeys
from api.store.database import Transaction, load
from api.store.query import Digests, Json, RowCount, Uuid, call, query, run
from workbench.language.channel import ChannelName

# --- Outgoing emails and webhooks

Feedback: TypeAlias = Literal["bounced", "complained"]
DeliveryStatus: TypeAlias = Literal["queued", "sent", "failed", "skipped", "unknown"]


class NewMessage(msgspec.Struct, frozen=True):
    """A message of an entry, with the columns that its channel uses; the recipient of an email is sealed.

    `token` belongs to the claim that sends it. `cause`: in one word, why the message is not sent at all.
    """

    id: Uuid
    contact_id: Uuid
    automation_id: Uuid
    entry_id: Uuid
    node_id: str
    channel: str
    token: int = 0
    wallet_address: str | None = None
    recipient: str | None = None
    subject: str | None = None
    body: str | None = None
    html: bool = False
    track_clicks: bool = False
    data: str | None = None
    topic: str | None = None
    cause: str | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """The message to send, as it was first stored.

    `opted_out`: its contact has opted out of the channel. `declined`: it has declined the topic.
    """

    id: str
    contact_id: str
    channel: ChannelName
    recipient: str
    subject: str | None
    body: str
    html: bool
    track_clicks: bool
    topic: str | None
    created_at: datetime
    opted_out: bool
    declined: bool


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt: the message's new status, and the outcome to record (None: nothing was attempted).

    If an earlier attempt may have arrived, a failed or skipped message becomes `unknown` in both (see
    `settle_outgoing`).
    """

    status: DeliveryStatus
    outcome: Literal["sent", "retrying", "failed", "skipped", "unknown"] | None
    reason: str | None = None


@call
def add_outgoing(org_id: int, rows: Sequence[NewMessage], at: datetime) -> None:
    """Store messages that are not stored yet."""


@call
def claim_outgoing(org_id: int, rows: Sequence[NewMessage]) -> list[StoredMessage]:
    """Start sending messages; those that were sent before are left out."""


@call
def settle_outgoing(org_id: int, message_id: Uuid, token: int, result: AttemptResult, at: datetime) -> None:
    """Record the result of an attempt, unless another claim has taken the message since."""


@call
def abandon_outgoing(org_id: int, entry_ids: Collection[Uuid], at: datetime) -> None:
    """Give up the unsent messages of entries that have ended."""


@call
def add_skipped_messages(org_id: int, rows: Sequence[NewMessage], at: datetime) -> None: ...


# --- Messages as users see them


class MessageRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One message; `recipient` is a sealed email address or the URL of a webhook.

    `html` and `track_clicks` are read for a message of an entry; `automation` (its name) and `reason` (why it was not
    sent or delivered) for the timeline of a contact.
    """

    id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: ChannelName
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    data: msgspec.Raw | None
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None
    html: bool = False
    track_clicks: bool = False
    automation: str | None = None
    reason: str | None = None


@query
async def list_messages(tx: Transaction, org_id: int, entry_id: Uuid) -> list[MessageRow]: ...


class MessageContact(msgspec.Struct, frozen=True):
    """A message, and the identifiers of its contact; emails are sealed."""

    automation_id: str
    node_id: str
    recipient: str | None
    wallet_address: str | None
    email: str | None
    external_id: str | None

    def identifier(self, keys: OrgKeys) -> dict[str, str]:
        """Return one identifier of the contact, as in an event: it finds the contact again, and changes nothing."""
        email = None if self.email is None else keys.open_email(self.email)
        identifiers = {"walletAddress": self.wallet_address, "email": email, "externalId": self.external_id}
        return next({name: value} for name, value in identifiers.items() if value is not None)


@query
async def find_message_contact(tx: Transaction, org_id: int, message_id: Uuid) -> MessageContact | None:
    """Return a message with its contact; None if the contact was erased or has no identifiers."""


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
    extra: Json | None
    created_at: datetime


class Acknowledgement(msgspec.Struct, frozen=True):
    inbox: InboxKey
    id: str


@call
def add_inapp_messages(org_id: int, rows: Sequence[NewMessage], at: datetime) -> set[str]:
    """Store in-app messages; return the ids of new ones."""


@query
async def list_origins(tx: Transaction, org_id: int) -> tuple[str, ...]:
    """Return the web origins that may ask for an organization's messages."""


@query
async def add_origin(tx: Transaction, org_id: int, origin: str) -> RowCount:
    """Allow an origin; return 1 if it was new, else 0."""


@query
async def remove_origin(tx: Transaction, org_id: int, origin: str) -> RowCount:
    """Disallow an origin; return 1 if it was allowed, else 0."""


@query
async def add_challenge(tx: Transaction, org_id: int, nonce: str, challenge: Challenge) -> None: ...


@query
async def delete_expired_challenges(tx: Transaction, org_id: int, now: datetime, limit: int) -> RowCount: ...


@query
async def take_challenge(tx: Transaction, org_id: int, nonce: str) -> Challenge | None:
    """Delete a challenge and return it, or None if it does not exist or another request took it first."""


async def find_valid_keys(tx: Transaction, keys: Collection[KeyRef], now: datetime) -> dict[KeyRef, tuple[str, ...]]:
    """Return the keys that are still valid, with the origins of their organizations."""
    rows = await _find_valid_keys(tx, [org_id for org_id, _ in keys], [key_id for _, key_id in keys], now)
    return {(org_id, key_id): tuple(origins) for org_id, key_id, origins in rows}


@query
async def _find_valid_keys(
    tx: Transaction, org_ids: list[int], key_ids: list[Uuid], now: datetime
) -> list[tuple[int, str, list[str]]]: ...


async def read_inboxes(
    tx: Transaction, inboxes: Sequence[InboxKey], under_way: Collection[str], limit: int
) -> list[tuple[InboxKey, WaitingMessage]]:
    """Return up to `limit` waiting messages of each inbox, oldest first, without those in `under_way`."""
    wallets: defaultdict[int, list[str]] = defaultdict(list)
    for org_id, wallet in inboxes:
        wallets[org_id].append(wallet)
    # One call per organization: every statement names one `org_id`, which also selects the node on Citus.
    calls = [_read_inboxes(org_id, org_wallets, under_way, limit) for org_id, org_wallets in wallets.items()]
    return [
        ((org_id, wallet), message)
        for org_id, messages in zip(wallets, await run(tx, *calls), strict=True)
        for wallet, wallet_messages in messages.items()
        for message in wallet_messages
    ]


@call
def _read_inboxes(
    org_id: int, wallets: list[str], under_way: Collection[Uuid], limit: int
) -> dict[str, list[WaitingMessage]]: ...


async def acknowledge(tx: Transaction, acknowledgements: Collection[Acknowledgement], now: datetime) -> None:
    org_ids, wallets = [item.inbox[0] for item in acknowledgements], [item.inbox[1] for item in acknowledgements]
    await _acknowledge(tx, org_ids, [item.id for item in acknowledgements], wallets, now)


@query
async def _acknowledge(
    tx: Transaction, org_ids: list[int], ids: list[Uuid], wallets: list[str], now: datetime
) -> None: ...


async def find_inbox_channel(connection: AsyncConnection[TupleRow]) -> str:
    """Return the channel that announces waiting messages."""
    # Its name is random and stored, because direct logins may LISTEN to any channel that they can name.
    row = await (await connection.execute(load("messages")["find_inbox_channel"])).fetchone()
    assert row is not None
    return str(row[0])


@call
def announce_messages(org_id: int, wallets: Collection[str]) -> None:
    """Tell every API process, when the transaction commits, that these wallets have waiting messages."""


def wallet_mark(wallet: str) -> str:
    """Return the mark of a wallet in a notification: the beginning of its MD5, as in `announce_messages`."""
    return hashlib.md5(wallet.encode(), usedforsecurity=False).hexdigest()[:16]


# --- Suppressions, webhook secrets and endpoints


@call
def suppress(
    org_id: int,
    channel: ChannelName,
    address_digests: Digests,
    created_at: datetime,
    reason: str = "unsubscribed",
    cause: Feedback | None = None,
) -> None:
    """Stop messages of a channel to an address, because its owner unsubscribed, or because of feedback."""


@call
def note_feedback(org_id: int, message_id: Uuid, feedback: Feedback, at: datetime) -> None:
    """Record that an email that was sent bounced, or that its recipient complained."""


@query
async def find_suppressed(
    tx: Transaction, org_id: int, channel: ChannelName, address_digests: Collection[Uuid]
) -> set[str]:
    """Return the addresses, as blind indexes, that get no more messages of a channel."""


async def insert_webhook_secret(tx: Transaction, keyring: Keyring, org_id: int, secret: str, now: datetime) -> None:
    """Store an organization's first webhook secret, unless it has one."""
    await _insert_webhook_secret(tx, org_id, keyring.of(org_id).seal_webhook_secret(secret), now)


@query
async def _insert_webhook_secret(tx: Transaction, org_id: int, secret: bytes, created_at: datetime) -> None: ...


async def roll_webhook_secret(
    tx: Transaction, keyring: Keyring, org_id: int, secret: str, at: datetime, previous_until: datetime
) -> None:
    """Replace the webhook secret; the previous one signs, too, until `previous_until`."""
    await _roll_webhook_secret(tx, org_id, keyring.of(org_id).seal_webhook_secret(secret), at, previous_until)


@query
async def _roll_webhook_secret(
    tx: Transaction, org_id: int, secret: bytes, at: datetime, previous_until: datetime
) -> None: ...


async def find_webhook_secrets(tx: Transaction, keyring: Keyring, org_id: int, now: datetime) -> tuple[str, ...]:
    """Return the secrets that sign an organization's webhooks now, newest first; () before the first one is stored."""
    sealed = await _find_webhook_secrets(tx, org_id, now) or ()
    return tuple(keyring.of(org_id).open_webhook_secret(secret) for secret in sealed if secret is not None)


@query
async def _find_webhook_secrets(tx: Transaction, org_id: int, now: datetime) -> tuple[bytes, bytes | None] | None: ...


@call
def close_endpoint(org_id: int, url_digests: Digests, host: str, closed_at: datetime) -> None:
    """Send nothing more to a webhook URL."""


@query
async def open_endpoint(tx: Transaction, org_id: int, url_digests: Digests) -> bool:
    """Send to a webhook URL again; return whether it was closed."""


@query
async def find_closed_endpoints(tx: Transaction, org_id: int, url_digests: Collection[Uuid]) -> set[str]:
    """Return the blind indexes of those webhook URLs that are closed."""


# --- Test sends

TEST_PUSH_RETENTION = timedelta(days=1)


@query
async def find_published_urls(tx: Transaction, org_id: int) -> list[str]:
    """Return the webhook URLs in published automations, as templates."""


@query
async def count_test_sends(tx: Transaction, org_id: int, since_id: Uuid) -> int:
    """Count the test sends since a time, given as an id of that time."""


@query
async def add_test_push(
    tx: Transaction,
    org_id: int,
    id: Uuid,  # noqa: A002  the name of the column
    contact_id: Uuid | None,
    wallet: str,
    title: str,
    body: str,
    extra: str,
    created_at: datetime,
) -> None:
    """Store an in-app message for a wallet, apart from the messages that are counted.

    `extra` is JSON text, `contact_id` the contact that its texts may mention.
    """


@query
async def find_old_test_pushes(tx: Transaction, now: datetime, retention: timedelta = TEST_PUSH_RETENTION) -> list[int]:
    """Return the organizations that have test messages older than a day."""


@query
async def delete_old_test_pushes(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = TEST_PUSH_RETENTION
) -> RowCount: ...


# --- Usage


@query
async def count_sent(tx: Transaction, org_id: int, since: datetime, until: datetime) -> dict[str, int]:
    """Count the messages sent from `since` until before `until`, by channel; channels without any are left out."""
