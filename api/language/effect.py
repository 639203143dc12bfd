"""What decisions ask for.

In-app messages, tags and attributes live in the database and commit with the state of their entry. An email and a webhook
leave the house: their row is there before them, and their id is one for ever.
"""

from typing import Any, TypeAlias

import msgspec

from api.language.codec import Json
from api.language.retry import Channel


class InappMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="inapp"):
    """A message stored for a wallet, pushed to its sockets."""

    id: str
    node_id: str
    wallet_address: str
    title: str
    body: str
    data: dict[str, Any] | None = None


class EmailMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="email"):
    """An email. `html`: the body is HTML, in which the values stand escaped; otherwise it is plain text."""

    id: str
    node_id: str
    email: str
    subject: str
    body: str
    html: bool = False


class WebhookMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="channel", tag="webhook"):
    """A POST to a URL; `body` is the text that is sent."""

    id: str
    node_id: str
    url: str
    body: str


class TagAdded(msgspec.Struct, frozen=True):
    """The contact carries the tag."""

    tag: str


class TagRemoved(msgspec.Struct, frozen=True):
    """The contact does not carry the tag."""

    tag: str


class ContactUpdated(msgspec.Struct, frozen=True):
    """The contact's attributes are merged with these, shallowly, as an event's are."""

    attributes: dict[str, Json]


Message: TypeAlias = InappMessage | EmailMessage | WebhookMessage
OutsideEffect: TypeAlias = EmailMessage | WebhookMessage
Effect: TypeAlias = Message | TagAdded | TagRemoved | ContactUpdated


def channel_of(message: Message) -> Channel:
    """Return the way by which a message leaves."""
    match message:
        case InappMessage():
            return "inapp"
        case EmailMessage():
            return "email"
        case WebhookMessage():
            return "webhook"
