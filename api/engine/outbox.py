"""Messages that are to leave the house: stored with the entry that sends them, before anything leaves.

The first text stays: a retry sends the stored row, not a new rendering, under the same id. One that went out before is not sent
again, however the entry came back to its node.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.clock import token
from api.delivery import signing
from api.engine.perform import Pending, Progress
from api.keyring import INDEX, Keyring
from api.language.effect import EmailMessage, WebhookMessage
from api.store import delivery
from api.store import outbox as store
from api.store.calls import run
from api.store.database import Transaction
from api.store.outbox import OutgoingRow, Stored


class Parcel(msgspec.Struct, frozen=True):
    """A message that an entry waits for. `stored` None: it went out before. `closed`: nobody is to be reached there.

    `secrets`: what a webhook is signed with.
    """

    progress: Progress
    pending: Pending
    stored: Stored | None
    closed: bool
    secrets: tuple[str, ...]


async def pack(tx: Transaction, org_id: int, keyring: Keyring, done: Sequence[Progress], at: datetime) -> list[Parcel]:
    """Store what the entries want to send, and take it on; return one parcel for each."""
    waiting = [(each, each.pending) for each in done if each.pending is not None]
    if not waiting:
        return []
    rows = [_row(keyring, org_id, each, pending) for each, pending in waiting]
    _, stored = await run(tx, store.add_outgoing(org_id, rows, at), store.take_outgoing(org_id, rows))
    closed = await _closed(tx, org_id, keyring, list(stored.values()))
    hooks = any(each.channel == "webhook" for each in stored.values())
    secrets = await _secrets(tx, org_id, keyring, at) if hooks else ()
    return [
        Parcel(each, pending, stored.get(row.id), row.id in closed, secrets)
        for (each, pending), row in zip(waiting, rows, strict=True)
    ]


def _row(keyring: Keyring, org_id: int, each: Progress, pending: Pending) -> OutgoingRow:
    claim, effect = each.claim, pending.effect
    ids = (effect.id, claim.contact_id, claim.automation_id, claim.entry_id, effect.node_id, claim.token)
    match effect:
        case EmailMessage(email=email, subject=subject, body=body, html=html):
            return OutgoingRow(*ids, "email", keyring.of(org_id).seal_email(email), subject, body, html)
        case WebhookMessage(url=url, body=body):
            return OutgoingRow(*ids, "webhook", url, None, body, html=False)


async def _closed(tx: Transaction, org_id: int, keyring: Keyring, stored: list[Stored]) -> set[str]:
    """Return the ids of messages to addresses that were unsubscribed or closed."""
    emails = {each.id: address_digest(keyring, org_id, each) for each in stored if each.channel == "email"}
    urls = {each.id: address_digest(keyring, org_id, each) for each in stored if each.channel == "webhook"}
    closed: set[str] = set()
    if emails:
        found = await delivery.suppressed(tx, "email", {(org_id, digest) for digest in emails.values()})
        closed |= {message_id for message_id, digest in emails.items() if (org_id, digest) in found}
    if urls:
        found = await delivery.closed_endpoints(tx, {(org_id, digest) for digest in urls.values()})
        closed |= {message_id for message_id, digest in urls.items() if (org_id, digest) in found}
    return closed


def address_digests(keyring: Keyring, org_id: int, stored: Stored) -> str:
    """Return the blind indexes of where a message goes (`OrgKeys.digests`)."""
    keys = keyring.of(org_id)
    if stored.channel == "email":
        return keys.digests("email", keys.open_email(stored.recipient))
    return keys.digests("url", stored.recipient)


def address_digest(keyring: Keyring, org_id: int, stored: Stored) -> str:
    """Return the one by which it is looked up."""
    return address_digests(keyring, org_id, stored)[:INDEX]


async def _secrets(tx: Transaction, org_id: int, keyring: Keyring, now: datetime) -> tuple[str, ...]:
    found = await delivery.webhook_secrets(tx, keyring, {org_id}, now)
    if org_id not in found:
        secret = signing.new_secret(token(signing.SECRET_BYTES))
        await delivery.insert_webhook_secret(tx, keyring, org_id, secret, now)
        found = await delivery.webhook_secrets(tx, keyring, {org_id}, now)
    return found[org_id]
