"""Contacts by what identifies them: the statements of `sql/queries/contacts.sql`. Nothing here writes."""

from collections.abc import Collection
from typing import Any

from api.keyring import OrgKeys
from api.language.codec import decode
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.identity import Kind
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("contacts")


async def stored_contact(tx: Transaction, org_id: int, keys: OrgKeys, who: Identifiers) -> Contact | None:
    """Return the contact an event with these identifiers belongs to, its email opened; None when there is none yet."""
    sent = [(Kind.WALLET, who.wallet), (Kind.EMAIL, who.email), (Kind.EXTERNAL_ID, who.external_id)]
    known = [(kind, keys.digest(kind.name.lower(), value)) for kind, value in sent if value is not None]
    values = {"org_id": org_id, "kinds": [int(kind) for kind, _ in known], "digests": [digest for _, digest in known]}
    row = await (await tx.execute(_SQL["stored_contact"], values)).fetchone()
    return None if row is None else _contact(keys, *row)


async def known_contacts(tx: Transaction, org_id: int, keys: OrgKeys, ids: Collection[str]) -> dict[str, Contact]:
    """Return contacts by id, their emails opened; those that were erased are missing."""
    cursor = await tx.execute(_SQL["known_contacts"], {"org_id": org_id, "ids": list(ids)})
    return {row[0]: _contact(keys, *row) async for row in cursor}


def _contact(keys: OrgKeys, contact_id: str, *columns: Any) -> Contact:
    wallet, sealed, external_id, wallet_raw, attributes, tags, segments, opted_out = columns
    email = None if sealed is None else keys.open_email(sealed)
    who = Identifiers(wallet, email, external_id, wallet_raw)
    return Contact(contact_id, who, decode(attributes), tuple(tags), tuple(segments), tuple(opted_out))
