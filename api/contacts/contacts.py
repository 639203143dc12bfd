"""Contacts as API callers see them, and changes to their tags and opt-outs.

Every change is one transaction under the lock of the contact, with its audit row.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from api.automations.automations import Author, Refusal, record, retried, unknown
from api.automations.views import Shown
from api.crypto import OrgKeys
from api.store import contacts as store
from api.store.contacts import (
    AbsorbedRow,
    ContactRow,
    ExportedEntryRow,
    ExportedEventRow,
    ExportedLogRow,
    ExportedMessageRow,
    find_contact_state,
)
from api.store.database import Database, Transaction
from api.store.entries import TagChange, change_tags
from api.store.locks import lock_contacts
from api.store.merges import find_survivor
from api.store.query import run
from workbench.language.codec import encode
from workbench.language.contact import IdentifierKind
from workbench.language.event import Identifiers

IDENTIFIER_FIELDS = {
    IdentifierKind.WALLET: "walletAddress",
    IdentifierKind.EMAIL: "email",
    IdentifierKind.EXTERNAL_ID: "externalId",
}


class ContactView(msgspec.Struct, frozen=True, rename="camel"):
    """A contact. `wallet_raw`: the wallet in the case in which it was first sent; `opted_out`: channels."""

    id: str
    wallet_address: str | None
    wallet_raw: str | None
    email: str | None
    external_id: str | None
    attributes: msgspec.Raw
    tags: list[str]
    segments: list[str]
    opted_out: list[str]
    created_at: datetime
    updated_at: datetime


class AbsorbedView(msgspec.Struct, frozen=True, rename="camel"):
    """A contact that was merged into another, as it was before the merge."""

    id: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    attributes: msgspec.Raw
    tags: list[str]
    created_at: datetime


class EventView(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a contact, with the identifiers that it was sent with."""

    id: str
    event: str
    occurred_at: datetime
    created_at: datetime
    payload: msgspec.Raw
    idempotency_key: str
    wallet_address: str | None
    email: str | None
    external_id: str | None


class ContactEntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a contact, with its steps."""

    id: str
    automation_id: str
    automation_version: int | None
    event_id: str
    state: str
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    steps: msgspec.Raw


class ContactLogView(msgspec.Struct, frozen=True, rename="camel"):
    """A log of a chain."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    args: msgspec.Raw
    removed: bool


class ContactMessageView(msgspec.Struct, frozen=True, rename="camel"):
    """A message to a contact on any channel; `recipient`: an email address or a URL."""

    id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    data: msgspec.Raw | None
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None


def contact_view(row: ContactRow, shown: Shown) -> ContactView:
    values = msgspec.structs.asdict(row)
    return ContactView(**values | {"email": _address(row.email, shown), "attributes": msgspec.Raw(row.attributes)})


def absorbed_view(row: AbsorbedRow, shown: Shown) -> AbsorbedView:
    values = msgspec.structs.asdict(row)
    return AbsorbedView(**values | {"email": _address(row.email, shown), "attributes": msgspec.Raw(row.attributes)})


def event_view(row: ExportedEventRow, shown: Shown) -> EventView:
    values = msgspec.structs.asdict(row)
    return EventView(**values | {"email": _address(row.email, shown), "payload": msgspec.Raw(row.payload)})


def log_view(row: ExportedLogRow) -> ContactLogView:
    return ContactLogView(**msgspec.structs.asdict(row) | {"args": msgspec.Raw(row.args)})


def entry_view(row: ExportedEntryRow) -> ContactEntryView:
    return ContactEntryView(**msgspec.structs.asdict(row) | {"steps": msgspec.Raw(row.steps)})


def message_view(row: ExportedMessageRow, shown: Shown) -> ContactMessageView:
    values = msgspec.structs.asdict(row)
    extra = values.pop("extra")
    if row.channel == "email":
        values["recipient"] = _address(row.recipient, shown)
    return ContactMessageView(**values, data=None if extra is None else msgspec.Raw(extra))


def _address(sealed: str | None, shown: Shown) -> str | None:
    return None if sealed is None else shown(sealed)


async def show(database: Database, org_id: int, contact_id: str, shown: Shown) -> ContactView | Refusal:
    """Return a contact, or the one it was merged into. An erased contact is not found."""
    async with database.transaction() as tx:
        return await _view(tx, org_id, await find_survivor(tx, org_id, contact_id), shown)


async def find(
    database: Database, org_id: int, keys: OrgKeys, identifiers: Identifiers, shown: Shown
) -> ContactView | Refusal:
    """Return the contact to which an event with these identifiers would belong."""
    async with database.transaction() as tx:
        contact = await find_contact_state(tx, org_id, keys, identifiers)
        return unknown("contact") if contact is None else await _view(tx, org_id, contact.id, shown)


@retried
async def opt_out(
    database: Database, author: Author, contact_id: str, opt_outs: Mapping[str, bool], shown: Shown
) -> ContactView | Refusal:
    """Opt a contact out of channels (True), or in again (False).

    Email addresses are suppressed as well, so that the choice outlives the contact. Opting in again removes that.
    """
    async with database.transaction() as tx:
        await lock_contacts(tx, [contact_id])
        contact = await store.find_contact(tx, author.org_id, contact_id)
        if contact is None:
            return unknown("contact")
        by_channel = {**dict.fromkeys(contact.opted_out, True), **opt_outs}  # other channels do not change
        opted_out = [channel for channel, is_out in by_channel.items() if is_out]
        await store.set_opted_out(tx, author.org_id, contact_id, opted_out, author.now)
        await record(tx, author, "contact.opt_out", contact_id, dict(opt_outs))
        return await _view(tx, author.org_id, contact_id, shown)


@retried
async def tag(
    database: Database, author: Author, contact_id: str, added: Sequence[str], removed: Sequence[str], shown: Shown
) -> ContactView | Refusal:
    """Remove tags from a contact, then add others."""
    async with database.transaction() as tx:
        await lock_contacts(tx, [contact_id])
        if await store.find_contact(tx, author.org_id, contact_id) is None:
            return unknown("contact")
        change = TagChange(contact_id, encode(removed).decode(), encode(added).decode())
        await run(tx, change_tags(author.org_id, [change], author.now))
        detail = {"added": len(added), "removed": len(removed)}  # a tag may describe a person, so only the number
        await record(tx, author, "contact.tag", contact_id, detail)
        return await _view(tx, author.org_id, contact_id, shown)


async def _view(tx: Transaction, org_id: int, contact_id: str, shown: Shown) -> ContactView | Refusal:
    row = await store.find_contact(tx, org_id, contact_id)
    return unknown("contact") if row is None else contact_view(row, shown)
