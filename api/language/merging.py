"""Two contacts that are one person: what the one that stays gains from the other, and what taking it back leaves.

What the staying contact has wins. Nothing of the other is destroyed: its own row keeps what it was, and its identifiers find the
staying contact from then on, also those that are not shown there because it has its own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from api.language.codec import Json, json_equal
from api.language.contact import are_too_many


class Person(msgspec.Struct, frozen=True):
    """What a contact is. `email` and `email_domain` are as stored, sealed; `wallet_raw` goes with the wallet."""

    wallet: str | None = None
    wallet_raw: str | None = None
    email: str | None = None
    email_domain: str | None = None
    external_id: str | None = None
    attributes: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    opted_out: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


class Gain(msgspec.Struct, frozen=True):
    """What one contact gains from another; only what it had not."""

    gained: Person
    hidden: tuple[str, ...]
    lost: dict[str, Json]


_IDENTIFIERS = {
    "walletAddress": ("wallet", "wallet_raw"),
    "email": ("email", "email_domain"),
    "externalId": ("external_id",),
}
_SETS = ("tags", "opted_out", "segments")


def gain(keep: Person, absorbed: Person) -> Gain:
    """Return what `keep` gains.

    `hidden`: the kinds of identifier that both have; the other's still finds the contact, and is not shown. `lost`: attributes of the
    other that are not seen any more, because `keep` has another value.
    """
    gained: dict[str, Any] = {}
    hidden = []
    for name, columns in _IDENTIFIERS.items():
        own, other = getattr(keep, columns[0]), getattr(absorbed, columns[0])
        if own is None:
            gained |= {column: getattr(absorbed, column) for column in columns}
        elif other not in (None, own):
            hidden.append(name)
    attributes = {name: value for name, value in absorbed.attributes.items() if name not in keep.attributes}
    lost = {
        name: value
        for name, value in absorbed.attributes.items()
        if name in keep.attributes and not json_equal(value, keep.attributes[name])
    }
    gained |= {name: _without(getattr(absorbed, name), getattr(keep, name)) for name in _SETS}
    return Gain(Person(**gained, attributes=attributes), tuple(hidden), lost)


def identifiers_in(person: Person) -> tuple[str, ...]:
    """Return the kinds of identifier that are there, by their names."""
    return tuple(name for name, columns in _IDENTIFIERS.items() if getattr(person, columns[0]) is not None)


def with_gain(keep: Person, gained: Person) -> Person | None:
    """Return the contact with what it gains; None when that is more attributes than one can have."""
    attributes = {**gained.attributes, **keep.attributes}
    if are_too_many(attributes):
        return None
    known: dict[str, Any] = {column: getattr(keep, column) or getattr(gained, column) for column in _columns()}
    known |= {name: (*getattr(keep, name), *_without(getattr(gained, name), getattr(keep, name))) for name in _SETS}
    return Person(**known, attributes=attributes)


class Rest(msgspec.Struct, frozen=True):
    """A contact from which a gain was taken back. `stays`: attributes that got another value since."""

    person: Person
    stays: tuple[str, ...]


def without_gain(keep: Person, gained: Person) -> Rest:
    """Return the contact without what it gained, as far as that is still what it gained."""
    known: dict[str, Any] = {
        column: None if getattr(keep, column) == getattr(gained, column) else getattr(keep, column)
        for column in _columns()
    }
    back = {name for name, value in gained.attributes.items() if json_equal(keep.attributes.get(name), value)}
    attributes = {name: value for name, value in keep.attributes.items() if name not in back}
    stays = tuple(name for name in gained.attributes if name in attributes)
    known |= {name: _without(getattr(keep, name), getattr(gained, name)) for name in _SETS}
    return Rest(Person(**known, attributes=attributes), stays)


def later(absorbed: dict[str, Json], now: dict[str, Json]) -> dict[str, Json]:
    """Return the attributes that were written to an absorbed contact after it was."""
    return {name: value for name, value in now.items() if name not in absorbed or not json_equal(value, absorbed[name])}


def _columns() -> Sequence[str]:
    return [column for columns in _IDENTIFIERS.values() for column in columns]


def _without(texts: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text not in others)
