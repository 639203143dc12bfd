"""Channels: each is declared once, with everything that the language, the engine and the pages need to know about it.

A message is what a channel carries. In-app messages stay in the database, and are committed with the state of their
entry. All other messages leave the system: their row in `messages` is committed before they are sent. Its id is derived
from entry and node, so a repeated attempt sends the same id.

`docs/extending.md` has the recipe for a new channel.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from workbench.language.contact import ContactState
from workbench.language.event import Identifiers

# Only wallets of EVM chains can sign in for in-app messages.
EVM_WALLET = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)

ChannelName: TypeAlias = Literal["inapp", "email", "webhook", "connection"]


def is_evm_wallet(wallet: str) -> bool:
    return EVM_WALLET.fullmatch(wallet) is not None


class InappMessage(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="channel", tag="inapp"):
    """A message stored for a wallet and pushed to its sockets."""

    id: str
    node_id: str
    wallet_address: str
    title: str
    body: str
    data: dict[str, Any] | None = None


class EmailMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="email"):
    """An email. `html`: the body is HTML with escaped values; otherwise it is plain text.

    `track_clicks`: its links are replaced by tracked ones when it leaves; `body` keeps those that were written.
    """

    id: str
    node_id: str
    email: str
    subject: str
    body: str
    html: bool = False
    track_clicks: bool = False


class WebhookMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="webhook"):
    """A POST of the text `body` to a URL."""

    id: str
    node_id: str
    url: str
    body: str


class ConnectionMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="connection"):
    """The fields for the request of a connection, as JSON text in `body`."""

    id: str
    node_id: str
    connection: str
    body: str


ExternalMessage: TypeAlias = EmailMessage | WebhookMessage | ConnectionMessage
Message: TypeAlias = InappMessage | ExternalMessage


class Recipient(msgspec.Struct, frozen=True):
    """The address of a contact that messages go to.

    `find`: the address for the identifiers of an event and its contact (docs/contract.md 4.7.5). `cause`: the cause of
    a step that fails without one. `field`: the name by which conditions test it. `noun`: the address in a sentence.
    `example`: a contact that has one, for previews. `is_deliverable`: whether a message to an address can ever arrive;
    if not, the step is `undeliverable`. `limitation`: which addresses are deliverable, as a clause.
    """

    find: Callable[[Identifiers, ContactState], str | None]
    cause: str
    field: str
    noun: str
    example: dict[str, Any]
    is_deliverable: Callable[[str], bool] = lambda _: True
    limitation: str = ""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel. No field has a default, so a channel without one of them fails at import.

    `name`: in JSON and in the database. `noun`, `plural`: one of its messages, and several, in a sentence. `title`,
    `destination`: templates for the title and the destination of a message, with the names of its fields. `message`:
    the struct of its messages; `columns`: where a stored message has each of their fields; `texts`: the fields that are
    rendered from the fields of the same name of the node's action, so they can quote values of the contact; `address`:
    the field with the address; `is_sealed`: whether the address is personal data, encrypted at rest and masked.
    `recipient`: where messages go; None if the node has the address. `to_contact`: the receiver is the contact, so
    quiet hours and the frequency cap apply. Other receivers are systems, which can send the event that starts the
    automation again, so the loop guard applies. `unsubscribes`: receivers can unsubscribe an address. `delays_s`: the
    delays after the first, second, … failure; an entry that fails after the last one is dead.
    """

    name: ChannelName
    noun: str
    plural: str
    title: str
    destination: str
    message: type[Message]
    columns: Mapping[str, str]
    texts: tuple[str, ...]
    address: str
    is_sealed: bool
    recipient: Recipient | None
    to_contact: bool
    unsubscribes: bool
    delays_s: tuple[float, ...]

    @property
    def receiver(self) -> str:
        """The name of the address in JSON."""
        return next(field.encode_name for field in msgspec.structs.fields(self.message) if field.name == self.address)


INAPP = Channel(
    name="inapp",
    noun="in-app message",
    plural="in-app messages",
    title="{title}",
    destination="in-app message to wallet {wallet_address}",
    message=InappMessage,
    columns={"wallet_address": "wallet_address", "title": "subject", "body": "body", "data": "data"},
    texts=("title", "body"),
    address="wallet_address",
    is_sealed=False,
    recipient=Recipient(
        lambda sent, contact: sent.wallet or contact.identifiers.wallet,
        "no_wallet",
        "walletAddress",
        "a wallet",
        {"walletAddress": "0x52908400098527886e0f7030069857d2e4169ee7"},
        is_evm_wallet,
        "only EVM wallets (0x…) can sign in",
    ),
    to_contact=True,
    unsubscribes=False,
    delays_s=(10, 60, 600, 3_600, 21_600),
)
EMAIL = Channel(
    name="email",
    noun="email",
    plural="emails",
    title="{subject}",
    destination="email to {email}",
    message=EmailMessage,
    columns={
        "email": "recipient",
        "subject": "subject",
        "body": "body",
        "html": "html",
        "track_clicks": "track_clicks",
    },
    texts=("subject", "body"),
    address="email",
    is_sealed=True,
    recipient=Recipient(
        lambda sent, contact: sent.email or contact.identifiers.email,
        "no_email",
        "email",
        "an email address",
        {"email": "someone@example.com"},
    ),
    to_contact=True,
    unsubscribes=True,
    delays_s=(60, 300, 1_800, 7_200, 21_600, 86_400),
)
WEBHOOK = Channel(
    name="webhook",
    noun="webhook",
    plural="webhooks",
    title="POST {url}",
    destination="webhook",
    message=WebhookMessage,
    columns={"url": "recipient", "body": "body"},
    texts=("url", "body"),
    address="url",
    is_sealed=False,
    recipient=None,
    to_contact=False,
    unsubscribes=False,
    delays_s=(5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400),
)
CONNECTION = Channel(
    name="connection",
    noun="connection message",
    plural="connection messages",
    title="{connection}",
    destination="message by the connection {connection}",
    message=ConnectionMessage,
    columns={"connection": "recipient", "body": "body"},
    texts=("body",),
    address="connection",
    is_sealed=False,
    recipient=None,
    # Chat and text messages: the receiver is one of the fields, so the safe assumption is that it is the contact.
    to_contact=True,
    unsubscribes=False,
    delays_s=(5, 60, 300, 1_800, 7_200, 21_600, 86_400),
)


CHANNELS: dict[str, Channel] = {channel.name: channel for channel in (INAPP, EMAIL, WEBHOOK, CONNECTION)}
CAPPED_CHANNELS = tuple(name for name, channel in CHANNELS.items() if channel.to_contact)
"""The channels whose messages count towards a frequency cap."""

CHANNELS_BY_MESSAGE: dict[type, Channel] = {channel.message: channel for channel in CHANNELS.values()}
assert tuple(CHANNELS) == get_args(ChannelName), "every name has a channel"
assert set(CHANNELS_BY_MESSAGE) == set(get_args(Message)), "every message has a channel"


def channel_of(message: Message) -> Channel:
    """Return the channel that delivers a message."""
    return CHANNELS_BY_MESSAGE[type(message)]


class RetryPolicy(msgspec.Struct, frozen=True):
    """The retry schedules. `delays_s`: one for all channels (`WORKBENCH_RETRY_DELAYS`); None: each channel's own."""

    delays_s: tuple[float, ...] | None = None

    def delays(self, channel: Channel | None) -> tuple[float, ...]:
        """Return the schedule of a node that sends by `channel`; None: a node that sends nothing."""
        if self.delays_s is not None:
            return self.delays_s
        # A node that sends nothing only writes to the database, as for an in-app message.
        return (channel or INAPP).delays_s

    def max_attempts(self, channel: Channel | None) -> int:
        return len(self.delays(channel)) + 1


DEFAULT_POLICY = RetryPolicy()
