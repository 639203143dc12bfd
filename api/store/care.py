"""Contacts one by one: the statements of `sql/queries/care.sql`. Whoever writes one holds its lock."""

from collections.abc import Collection
from datetime import datetime

import msgspec

from api.keyring import INDEX
from api.store.database import Transaction
from api.store.locks import lock_contacts
from api.store.statements import load

_SQL = load("care")


class ContactRow(msgspec.Struct, frozen=True):
    """A contact as stored: `email` is sealed, `attributes` JSON text, `wallet_raw` the wallet as it was first sent."""

    id: str
    wallet_address: str | None
    wallet_raw: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]
    segments: list[str]
    opted_out: list[str]
    created_at: datetime
    updated_at: datetime


async def find_contact(tx: Transaction, org_id: int, contact_id: str) -> ContactRow | None:
    """Return a contact, None when there is none, or it was erased or merged into another."""
    row = await (await tx.execute(_SQL["find_contact"], {"org_id": org_id, "id": contact_id})).fetchone()
    return None if row is None else ContactRow(*row)


async def set_opted_out(tx: Transaction, org_id: int, contact_id: str, channels: Collection[str], at: datetime) -> None:
    """Note what a contact wants no messages through; of its addresses, emails are suppressed or sent again."""
    values = {"org_id": org_id, "id": contact_id, "at": at}
    await tx.execute(_SQL["set_opted_out"], values | {"channels": sorted(channels)})
    name = "suppress_emails_of" if "email" in channels else "lift_suppressions_of"
    await tx.execute(_SQL[name], values)


async def opt_out_of_emails(tx: Transaction, org_id: int, address_digest: str, at: datetime) -> None:
    """Note that the owner of an address wants no more emails, if it has one."""
    asked = {"org_id": org_id, "address_digest": address_digest[:INDEX]}
    owner = await (await tx.execute(_SQL["owner_of_email"], asked)).fetchone()
    if owner is not None:
        await lock_contacts(tx, owner)
        await tx.execute(_SQL["opt_out_of_emails"], {"org_id": org_id, "id": owner[0], "at": at})
