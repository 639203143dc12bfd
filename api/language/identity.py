"""Which contact an event belongs to: contract §4.5 and the house's answers to its gaps.

First match wins: wallet, email, external id. Identifiers the contact lacks are filled in when nobody owns them. An email
sent with a matching wallet ends on the wallet's contact, whoever had it; everything else owned by another is left there.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Literal

import msgspec


class Kind(IntEnum):
    """Kinds of identifier in the order in which they decide; the numbers are those in `identities.kind`."""

    WALLET = 1
    EMAIL = 2
    EXTERNAL_ID = 3


Key = tuple[Kind, str]
"""An identifier as the store knows it: its kind and the blind index of its value (two of them while a secret is rotated)."""

ConflictOutcome = Literal["moved", "left", "replaced", "kept"]


class Conflict(msgspec.Struct, frozen=True):
    """An identifier that pointed elsewhere: `moved` from, or `left` with, the other contact; an own one `replaced` or `kept`."""

    key: Key
    outcome: ConflictOutcome
    other_contact_id: str | None


class Resolution(msgspec.Struct, frozen=True):
    """The contact, the keys it owns from now on, and what stood against it. `contact_id` None: a new contact."""

    contact_id: str | None
    gained: tuple[Key, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether the contact is known and no identifier changes hands (conflicts that stay as they are may remain)."""
        return self.contact_id is not None and not self.gained


def resolve(sent: tuple[Key, ...], owners: Mapping[Key, str], has: Mapping[str, frozenset[Kind]]) -> Resolution:
    """Decide for identifiers `sent`, given who owns each and which kinds each contact `has`."""
    by_kind = sorted(sent)
    match_kind, contact_id = next(((key[0], owners[key]) for key in by_kind if key in owners), (None, None))
    if contact_id is None:
        return Resolution(None, tuple(by_kind))
    gained: list[Key] = []
    conflicts: list[Conflict] = []
    for key in by_kind:
        owner = owners.get(key)
        if owner == contact_id:
            continue
        follows_wallet = key[0] is Kind.EMAIL and match_kind is Kind.WALLET
        found = list(_conflicts(key, owner, key[0] in has[contact_id], follows_wallet))
        conflicts += found
        if follows_wallet or not found:
            gained.append(key)
    return Resolution(contact_id, tuple(gained), tuple(conflicts))


def _conflicts(key: Key, owner: str | None, has_kind: bool, follows_wallet: bool) -> Iterator[Conflict]:
    """Yield what stands against the key: another owner, and a value of that kind which the contact has already."""
    if owner is not None:
        yield Conflict(key, "moved" if follows_wallet else "left", owner)
    if has_kind and (follows_wallet or owner is None):
        yield Conflict(key, "replaced" if follows_wallet else "kept", None)
