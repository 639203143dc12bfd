"""The contact that an automation is about, and what filters and texts see of it."""

from typing import Any

import msgspec

from api.language.codec import Json, encode
from api.language.event import Event, Identifiers
from api.language.trigger import known_identifiers

MOST_ATTRIBUTES = 1_000  # of one contact
MOST_ATTRIBUTES_TEXT = 262_144  # bytes of their JSON


class Contact(msgspec.Struct, frozen=True):
    """What is known of the contact when a step runs. `opted_out`: the channels it wants nothing through."""

    id: str
    identifiers: Identifiers = Identifiers()
    attributes: dict[str, Json] = {}
    tags: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    opted_out: tuple[str, ...] = ()


def identifiers_of(sent: Identifiers, contact: Identifiers) -> Identifiers:
    """Return who an event is about as filters and texts see it: what it carried, completed from the contact."""
    return Identifiers(
        sent.wallet or contact.wallet, sent.email or contact.email, sent.external_id or contact.external_id
    )


def contact_context(contact: Contact) -> dict[str, Any]:
    """Return what is seen as `contact`: its attributes, and over them the identifiers it has, id, tags and segments."""
    return {
        **contact.attributes,
        **known_identifiers(contact.identifiers),
        "id": contact.id,
        "tags": list(contact.tags),
        "segments": list(contact.segments),
    }


def are_too_many(attributes: dict[str, Json]) -> bool:
    """Return whether these are more attributes than one contact can have."""
    return len(attributes) > MOST_ATTRIBUTES or len(encode(attributes)) > MOST_ATTRIBUTES_TEXT


def meeting(contact: Contact, event: Event) -> Contact:
    """Return the contact as the event leaves it: attributes merged, missing identifiers filled in."""
    sent, own = event.identifiers, contact.identifiers
    who = identifiers_of(own, sent)
    if sent.email is not None and sent.wallet is not None and sent.wallet == own.wallet:
        who = msgspec.structs.replace(who, email=sent.email)  # an email follows the wallet it came with
    return msgspec.structs.replace(contact, identifiers=who, attributes={**contact.attributes, **event.attributes})
