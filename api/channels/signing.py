"""Signatures on what leaves the system: webhooks (Standard Webhooks 1.0) and links in emails.

A webhook is signed with HMAC-SHA256 over `id.timestamp.body`. While a secret is being rolled, a delivery carries one
signature for each secret, so a receiver that has either of them can verify it.

An unsubscribe token carries the blind index of an email address, never the address, and a MAC. It does not expire: the
link in an old email must still work. The tokens of the other links carry a contact: the page of its preferences, and
a topic to withdraw or to confirm. They do not expire either, and after a merge lead to the kept contact.
"""

import base64
import binascii
import hmac
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from api.clock import token
from api.crypto import Keyring
from api.store.database import Transaction
from api.store.messages import find_webhook_secrets, insert_webhook_secret

PREFIX = "whsec_"
SECRET_BYTES = 32  # the specification asks for 24 to 64
OVERLAP = timedelta(hours=24)  # how long the previous secret stays valid after a roll
UNSUBSCRIBE_PATH = "/api/v1/unsubscribe"

PREFERENCES_PATH = "/preferences"
CONFIRM_PATH = "/preferences/confirm"

_TOKEN_VERSION = b"u1"
_TOKEN = struct.Struct(">q16s16s")  # organization, blind index, MAC
_CONTACT_TOKEN_VERSION = b"p1"
_CONTACT_TOKEN = struct.Struct(">Bq16s16s")  # generation of the secret, organization, contact, MAC; then the topic

Purpose: TypeAlias = Literal["preferences", "withdraw", "confirm"]


def new_secret(random_bytes: bytes) -> str:
    """Return the text of a secret made of `SECRET_BYTES` cryptographically random bytes."""
    return PREFIX + base64.b64encode(random_bytes).decode()


async def find_secrets(tx: Transaction, keyring: Keyring, org_id: int, now: datetime) -> tuple[str, ...]:
    """Return the secrets that sign an organization's webhooks, newest first; create the first one when it is needed."""
    secrets = await find_webhook_secrets(tx, keyring, org_id, now)
    if not secrets:
        await insert_webhook_secret(tx, keyring, org_id, new_secret(token(SECRET_BYTES)), now)
        # Read again: another transaction may have stored a secret before this one, and the first one counts.
        secrets = await find_webhook_secrets(tx, keyring, org_id, now)
    return secrets


def headers(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a delivery; `timestamp` is in seconds since the epoch."""
    signatures = [signature(secret, message_id, timestamp, body) for secret in secrets]
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": " ".join(signatures)}


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature with its version, `v1,…`."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.digest(key, b"%b.%d.%b" % (message_id.encode(), timestamp, body), "sha256")
    return "v1," + base64.b64encode(digest).decode()


class Unsubscription(msgspec.Struct, frozen=True):
    """The content of an unsubscribe token: an organization and the blind index, in hex, of an email address.

    In a token that was read, `address_digest` has the indexes of every secret in use (`OrgKeys.digests_from`).
    """

    org_id: int
    address_digest: str


def unsubscribe_url(public_url: str, keyring: Keyring, unsubscription: Unsubscription) -> str:
    """Return the URL of an unsubscribe link; a POST to it unsubscribes the address."""
    return f"{public_url}{UNSUBSCRIBE_PATH}?token={unsubscribe_token(keyring, unsubscription)}"


def unsubscribe_token(keyring: Keyring, unsubscription: Unsubscription) -> str:
    """Return the token of an address; it is the same every time."""
    org_id, digest = unsubscription.org_id, bytes.fromhex(unsubscription.address_digest)
    mac = _unsubscribe_mac(keyring, org_id, digest)
    return base64.urlsafe_b64encode(_TOKEN.pack(org_id, digest, mac)).rstrip(b"=").decode()


def read_unsubscribe_token(keyring: Keyring, text: str) -> Unsubscription | None:
    """Return the content of a token, or None if it is malformed or its MAC is wrong."""
    try:
        org_id, digest, mac = _TOKEN.unpack(base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, struct.error):
        return None
    if not hmac.compare_digest(mac, _unsubscribe_mac(keyring, org_id, digest)):
        return None
    return Unsubscription(org_id, keyring.of(org_id).digests_from(digest.hex()))


def _unsubscribe_mac(keyring: Keyring, org_id: int, digest: bytes) -> bytes:
    # The upper four bits of an index are the number of its generation.
    return keyring.link_mac(b"unsubscribe", b"%b/%d/%b" % (_TOKEN_VERSION, org_id, digest), digest[0] >> 4)


class ContactLink(msgspec.Struct, frozen=True):
    """The content of a link for one contact. `topic`: that is withdrawn or confirmed, empty for the preferences."""

    purpose: Purpose
    org_id: int
    contact_id: str
    topic: str = ""


def contact_token(keyring: Keyring, link: ContactLink) -> str:
    """Return the token of a link; it is the same every time, until the secret is rotated."""
    number = keyring.chain.current.number
    mac = _contact_mac(keyring, number, link)
    packed = _CONTACT_TOKEN.pack(number, link.org_id, UUID(link.contact_id).bytes, mac) + link.topic.encode()
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read_contact_token(keyring: Keyring, purpose: Purpose, text: str) -> ContactLink | None:
    """Return the link in a token, or None if it is malformed, has another purpose, or its MAC is wrong."""
    try:
        token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        number, org_id, contact, mac = _CONTACT_TOKEN.unpack_from(token)
        topic = token[_CONTACT_TOKEN.size :].decode()
    except (binascii.Error, ValueError, struct.error):
        return None
    link = ContactLink(purpose, org_id, str(UUID(bytes=contact)), topic)
    return link if hmac.compare_digest(mac, _contact_mac(keyring, number, link)) else None


def contact_url(public_url: str, keyring: Keyring, link: ContactLink) -> str:
    """Return the URL of a page: of preferences, or to confirm. Opening it changes nothing; a POST to it does."""
    token = contact_token(keyring, link)
    return f"{public_url}{PREFERENCES_PATH if link.purpose == 'preferences' else CONFIRM_PATH}/{token}"


def _contact_mac(keyring: Keyring, number: int, link: ContactLink) -> bytes:
    content = (_CONTACT_TOKEN_VERSION, number, link.org_id, UUID(link.contact_id).bytes, link.topic.encode())
    return keyring.link_mac(link.purpose.encode(), b"%b/%d/%d/%b/%b" % content, number)
