"""The common parts of all outgoing channels: a delivery, its outcome, and what each channel declares.

An outcome is the result of one attempt to send a message. It has a reason from a closed set. Neither the reason nor its
detail ever carries a secret, an address, or text that the receiving server sent: they are stored and shown.
"""

import re
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol, TypeAlias

import msgspec

from api.clock import Clock
from api.crypto import Keyring
from api.settings import Settings
from api.store.database import Database, Transaction
from api.store.query import Call
from workbench.language.channel import Channel
from workbench.language.connections import MAX_RETRY_AFTER_S, ConnectionDefinition

TEST_HEADER = "X-Event-Workbench-Test"  # of emails and webhooks that are sent to test an automation

Reason: TypeAlias = Literal[
    "accepted",  # the receiving server accepted the message
    "busy",  # too many deliveries are waiting for this endpoint, or for a connection: nothing was tried
    "unreachable",  # could not connect; also for an address that the guard forbids
    "tls_failed",  # the certificate is not valid for the name, or the server does not speak TLS
    "refused",  # the receiving server answered with an error
    "not_signed_in",  # the mail server rejected the login
    "no_answer",  # everything may have been sent, and no response came
    "gone",  # the endpoint answered 410, or the mail server does not know the address
    "invalid_header",  # a header value could be read as another header
    "invalid_address",  # nothing can be delivered to the address
    "no_connection",  # the connection was deleted
    "invalid_request",  # the request of a connection cannot be made from the values of the message
]


class Sent(msgspec.Struct, frozen=True):
    """The receiving server accepted the message. `detail`: its response, as a code."""

    detail: str = ""


class Retry(msgspec.Struct, frozen=True):
    """Not sent; a later attempt may succeed, not before `after_seconds` if the server asked for that."""

    reason: Reason
    after_seconds: float | None = None
    detail: str = ""


class Failed(msgspec.Struct, frozen=True):
    """Not sent; no later attempt can succeed."""

    reason: Reason
    detail: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """The message may have been delivered. It is sent again with the same id, so that the receiver can deduplicate."""

    reason: Reason
    detail: str = ""


Outcome: TypeAlias = Sent | Retry | Failed | Unknown

MayLeave: TypeAlias = Callable[[], bool]
"""Called at the last moment, after every wait for a slot or a connection.

False: nothing is sent, and the outcome is `Retry("busy")`.
"""


def always() -> bool:
    return True


class NotSent(msgspec.Struct, frozen=True):
    """Nothing was sent: the message was sent before (`already_sent`), or the recipient has opted out (`skipped`)."""

    outcome: Literal["already_sent", "skipped"]
    cause: str | None = None


DeliveryOutcome: TypeAlias = Outcome | NotSent


class PreparedRequest(msgspec.Struct, frozen=True):
    """The request of a connection as it is now, with its secrets, which no text of this object shows."""

    definition: ConnectionDefinition
    secrets: dict[str, str]

    def __repr__(self) -> str:
        return "PreparedRequest()"


class Attachment(msgspec.Struct, frozen=True):
    """A file of an email: an HTML document with its name."""

    name: str
    html: str


class Delivery(msgspec.Struct, frozen=True):
    """One message to one address; every attempt has the same bytes.

    `created_at` is the time of the message, not of an attempt. `html`: the body is HTML. `unsubscribe_url`: a POST to
    it unsubscribes the address. `secrets`: the secrets that sign the message, newest first. `test`: mark the message as
    a test in a header. `track_clicks`: the links of the body have yet to be replaced by tracked ones. `request`: the
    request of a connection, which `body` has the fields for. `contact_id`: the contact of the links to preferences;
    None in a test. `topic`: what the message is about. `attachment`: the page, in an email of a page schedule; its
    recipient need not be a contact.
    """

    org_id: int
    id: str
    created_at: datetime
    address: str
    subject: str
    body: str
    html: bool = False
    unsubscribe_url: str = ""
    secrets: tuple[str, ...] = ()
    test: bool = False
    track_clicks: bool = False
    request: PreparedRequest | None = None
    contact_id: str | None = None
    topic: str | None = None
    attachment: Attachment | None = None


class Sender(Protocol):
    """Sends the messages of one channel. `is_local`: they do not leave this machine, so any address is harmless."""

    is_local: bool

    async def send(self, delivery: Delivery, now: datetime, may_leave: MayLeave = always) -> Outcome:
        """Send a message once, if `may_leave` still allows it when everything is ready."""

    async def close(self) -> None:
        """Close all connections."""


class AddressRule(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a channel.

    `index`: the kind of their blind index. `read` returns an address as it is stored, or None if it is not valid, and
    then the problem is `reason`. `names`: the names under which the operator can allow tests to an address.
    `identifier`: the kind of contact identifier that an address is; tests may go to the addresses of contacts.
    `is_used`: whether the organization already sends to an address that belongs to no contact. `unknown`: the problem
    of an address that fails all these rules.
    """

    index: str
    read: Callable[[str], str | None]
    reason: str
    names: Callable[[str], tuple[str, ...]]
    identifier: Literal["wallet", "email"] | None
    is_used: Callable[[Transaction, int, str], Awaitable[bool]] | None
    unknown: str


class OutgoingChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that sends messages to other systems. Fields have no defaults, so a missing one fails at import.

    `open` creates the sender from the settings. `find_closed` selects, by blind index, the addresses of an organization
    that accept no more messages; `closed` is the outcome of a delivery to one of them. `close` stores that an address
    (its blind indexes, and in clear) does not exist any more. `find_secrets` returns the signing secrets, newest first.
    `prepare` completes a delivery just before it is sent, or returns why it cannot be sent now.
    """

    channel: Channel
    address: AddressRule
    open: Callable[[Settings], Sender]
    find_closed: Callable[[Transaction, int, Collection[str]], Awaitable[set[str]]]
    closed: DeliveryOutcome
    close: Callable[[int, str, str, datetime], Call[None]] | None
    find_secrets: Callable[[Transaction, Keyring, int, datetime], Awaitable[tuple[str, ...]]] | None
    prepare: Callable[[Database, Keyring, Delivery, Clock], Awaitable[Delivery | Outcome]] | None


_SECONDS = re.compile(r"\d{1,12}", re.ASCII)


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` in a `Retry-After` header (RFC 9110, section 10.2.3), at most MAX_RETRY_AFTER_S.

    None for a value that is neither a number of seconds nor a date.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), MAX_RETRY_AFTER_S)  # an untrusted server could ask for years
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:  # the zone is `-0000`: UTC, and the sender's zone is unknown
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)
