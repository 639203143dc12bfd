"""Outbox: emails and webhooks, stored with their entry before anything is sent.

The first text counts: a retry sends the stored row under the same id, not a new rendering. A message that was sent
before is not sent again, however its entry came back to the node.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.channels import signing
from api.clock import token
from api.crypto import INDEX, Keyring
from api.engine.progress import EntryProgress, PendingDelivery
from api.store import messages
from api.store.database import Transaction
from api.store.messages import OutgoingRow, StoredMessage
from api.store.query import run
from workbench.language.run import EmailMessage, WebhookMessage


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to deliver before its entry can continue.

    `stored`: the message as it was stored first, or None if it was sent before. `closed`: the address is unsubscribed,
    or the endpoint answered 410 before. `secrets`: the secrets to sign a webhook with, newest first.
    """

    progress: EntryProgress
    pending: PendingDelivery
    stored: StoredMessage | None
    closed: bool
    secrets: tuple[str, ...]


async def store_outgoing(
    tx: Transaction, org_id: int, keyring: Keyring, batch: Sequence[EntryProgress], at: datetime
) -> list[OutgoingMessage]:
    """Store the emails and webhooks that entries of a batch want to send; return one outgoing message for each."""
    pending = [(progress, progress.pending) for progress in batch if progress.pending is not None]
    if not pending:
        return []
    rows: list[OutgoingRow] = []
    for progress, delivery in pending:
        claim, effect = progress.claim, delivery.effect
        ids = (effect.id, claim.contact_id, claim.automation_id, claim.entry_id, effect.node_id, claim.token)
        match effect:
            case EmailMessage(email=email, subject=subject, body=body, html=html):
                sealed = keyring.of(org_id).seal_email(email)
                rows.append(OutgoingRow(*ids, "email", sealed, subject, body, html))
            case WebhookMessage(url=url, body=body):
                rows.append(OutgoingRow(*ids, "webhook", url, None, body, html=False))
    _, stored = await run(tx, messages.add_outgoing(org_id, rows, at), messages.claim_outgoing(org_id, rows))

    # Unsubscribed addresses and closed endpoints, looked up by blind index.
    emails: dict[str, str] = {}
    urls: dict[str, str] = {}
    for message in stored.values():
        digest = address_digest(keyring, org_id, message)
        match message.channel:
            case "email":
                emails[message.id] = digest
            case "webhook":
                urls[message.id] = digest
    closed_ids: set[str] = set()
    if emails:
        suppressed = await messages.find_suppressed(tx, "email", {(org_id, digest) for digest in emails.values()})
        closed_ids |= {message_id for message_id, digest in emails.items() if (org_id, digest) in suppressed}
    if urls:
        closed = await messages.find_closed_endpoints(tx, {(org_id, digest) for digest in urls.values()})
        closed_ids |= {message_id for message_id, digest in urls.items() if (org_id, digest) in closed}

    secrets: tuple[str, ...] = ()
    if urls:
        secrets_by_org = await messages.find_webhook_secrets(tx, keyring, {org_id}, at)
        if org_id not in secrets_by_org:  # the organization's first webhook
            secret = signing.new_secret(token(signing.SECRET_BYTES))
            await messages.insert_webhook_secret(tx, keyring, org_id, secret, at)
            # Another engine may have inserted one first: the stored one counts.
            secrets_by_org = await messages.find_webhook_secrets(tx, keyring, {org_id}, at)
        secrets = secrets_by_org[org_id]
    return [
        OutgoingMessage(progress, delivery, stored.get(row.id), row.id in closed_ids, secrets)
        for (progress, delivery), row in zip(pending, rows, strict=True)
    ]


def address_digests(keyring: Keyring, org_id: int, message: StoredMessage) -> str:
    """Return the blind indexes of a message's recipient, of every secret in use (`OrgKeys.digests`)."""
    keys = keyring.of(org_id)
    match message.channel:
        case "email":
            return keys.digests("email", keys.open_email(message.recipient))
        case "webhook":
            return keys.digests("url", message.recipient)


def address_digest(keyring: Keyring, org_id: int, message: StoredMessage) -> str:
    """Return the blind index by which a message's recipient is looked up."""
    return address_digests(keyring, org_id, message)[:INDEX]
