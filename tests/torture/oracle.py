"""The oracle of identity resolution: the contacts, owners and attributes that the events must have produced.

It is written from docs/contract.md 4.5, independently of `workbench.language.contact`. Events are applied in the order
of their commits. That order is exact for every event that changes something, because the change is decided under locks
that are held until the commit. An event whose identifiers and attributes are already in place takes no lock, so the
state that it read may have changed before its commit. The oracle accepts the result of any moment of its transaction.
An email that such an event would have stored again in the latest state is doubtful until a later event tells.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tests.torture.log import Identifier, IdentifierKind
from tests.torture.rows import ErasureRow, EventRow

MAX_ATTRIBUTES = 1_000  # of a contact
CLOCK_ERROR_US = 5_000_000  # a process that measured the database's clock during a freeze

Owners = Mapping[Identifier, str]
HeldIdentifiers = Mapping[str, Mapping[IdentifierKind, str]]
Conflict = tuple[IdentifierKind, str]
"""A kind of identifier, and what was done about it."""


class Resolution(msgspec.Struct, frozen=True):
    """The contact of an event (None for a new contact), the identifiers it gains, and the conflicts."""

    contact: str | None
    gained: list[Identifier]
    conflicts: set[Conflict]


def resolve_identity(sent: list[Identifier], owners: Owners, held: HeldIdentifiers) -> Resolution:
    """Decide the contact of an event from the owners of identifiers and the identifiers of each contact."""
    contact = next((owners[identifier] for identifier in sent if identifier in owners), None)
    if contact is None:
        return Resolution(None, sent, set())
    by_wallet = sent[0][0] == "wallet" and sent[0] in owners
    gained: list[Identifier] = []
    conflicts: set[Conflict] = set()
    for kind, value in sent:
        owner, takes, full = owners.get((kind, value)), by_wallet and kind == "email", kind in held[contact]
        if owner == contact and (kind != "email" or held[contact].get(kind) == value):
            continue
        if owner not in (None, contact):
            conflicts.add((kind, "moved" if takes else "left"))
        if full and (takes or owner is None):
            conflicts.add((kind, "replaced" if takes else "kept"))
        if takes or (owner in (None, contact) and not full):
            gained.append((kind, value))
    return Resolution(contact, gained, conflicts)


class _Change(msgspec.Struct, frozen=True):
    """A contact lost identifiers: one email to another contact or to its own next one, or all through an erasure.

    `owners` and `identifiers` hold the state before the change.
    """

    committed: int
    transaction: int
    owners: dict[Identifier, str]
    identifiers: dict[str, dict[IdentifierKind, str]]


class IdentityModel:
    """The contacts of one organization after each event: the owner of each identifier and the identifiers of each
    contact. `doubtful`: contacts that may be without the email that they have here.
    """

    def __init__(self) -> None:
        self.owners: dict[Identifier, str] = {}
        self.identifiers: dict[str, dict[IdentifierKind, str]] = {}
        self.doubtful: set[str] = set()
        self._changes: list[_Change] = []

    def apply_event(self, event: EventRow, conflicts: set[Conflict]) -> str | None:
        """Apply an event. Returns what is wrong with its contact or its recorded conflicts, or None."""
        judgement = resolve_identity(event.identifiers(), self.owners, self.identifiers)
        problem = self._differs(event, conflicts, judgement)
        if problem is not None and self._could_see_less(event, conflicts):
            return None
        if problem is not None and judgement.contact in self.doubtful:
            self.doubtful.remove(judgement.contact)
            del self.identifiers[judgement.contact]["email"]
            return self.apply_event(event, conflicts)
        regained = any(self.owners.get(identifier) == judgement.contact for identifier in judgement.gained)
        is_doubtful = problem is None and regained and self._could_see_less(event, conflicts)
        self._apply(event, judgement)
        if is_doubtful:
            self.doubtful.add(event.contact_id)
        return problem

    def apply_erasure(self, erasure: ErasureRow) -> None:
        """Erase a contact: later events no longer resolve to it."""
        contact = erasure.contact_id
        lost = {identifier: owner for identifier, owner in self.owners.items() if owner == contact}
        identifiers = {contact: self.identifiers.get(contact, {})}
        self._changes.append(_Change(erasure.committed, erasure.transaction, lost, identifiers))
        for identifier in lost:
            del self.owners[identifier]
        self.identifiers[contact] = {}
        self.doubtful.discard(contact)

    def _differs(self, event: EventRow, conflicts: set[Conflict], judgement: Resolution) -> str | None:
        contact = event.contact_id if event.contact_id in self.identifiers else None
        if contact != judgement.contact:
            return f"event {event.id} is on contact {event.contact_id}, not on {judgement.contact or 'a new one'}"
        if conflicts != judgement.conflicts:
            return f"event {event.id} has the conflicts {sorted(conflicts)}, not {sorted(judgement.conflicts)}"
        return None

    def _could_see_less(self, event: EventRow, conflicts: set[Conflict]) -> bool:
        """Whether the event changed nothing and is right for the state before some of the latest changes."""
        owners, identifiers = dict(self.owners), dict[str, Mapping[IdentifierKind, str]](self.identifiers)
        for change in reversed(self._changes):
            if change.committed < _earliest(event):
                return False
            if change.transaction == event.transaction:
                continue
            owners |= change.owners
            identifiers |= change.identifiers
            judgement = resolve_identity(event.identifiers(), owners, identifiers)
            if not judgement.gained and self._differs(event, conflicts, judgement) is None:
                return True
        return False

    def _apply(self, event: EventRow, judgement: Resolution) -> None:
        contact = judgement.contact or event.contact_id
        identifiers = self.identifiers.setdefault(contact, {})
        for kind, value in judgement.gained:
            former = self.owners.get((kind, value))
            if former not in (None, contact):
                self._lose(event, value, former, contact)
            elif kind in identifiers:
                self._changes.append(_Change(event.committed, event.transaction, {}, {contact: dict(identifiers)}))
            self.owners[kind, value] = contact
            identifiers[kind] = value
            if kind == "email":
                self.doubtful.discard(contact)

    def _lose(self, event: EventRow, email: str, former: str, taker: str) -> None:
        before = {contact: dict(self.identifiers[contact]) for contact in (former, taker)}
        self._changes.append(_Change(event.committed, event.transaction, {("email", email): former}, before))
        if self.identifiers[former].get("email") == email:
            self.doubtful.discard(former)
            del self.identifiers[former]["email"]


class Traits:
    """The attributes of one contact: the possible values of each name."""

    def __init__(self) -> None:
        self.possible: dict[str, set[Any]] = {}
        self._past: dict[tuple[str, Any], int] = {}

    def merge(self, event: EventRow, attributes: dict[str, Any]) -> None:
        """Apply the attributes of an event.

        If all of them may have been stored already, the event may have written nothing. New ones are left out where
        the contact has no room.
        """
        silent = all(self._seen(event, name, value) for name, value in attributes.items())
        for name, value in attributes.items():
            if name not in self.possible and len(self.possible) >= MAX_ATTRIBUTES:
                continue
            before = self.possible.get(name, set())
            self._past |= {(name, contact): event.committed for contact in before}
            self.possible[name] = before | {value} if silent else {value}

    def _seen(self, event: EventRow, name: str, value: Any) -> bool:
        return value in self.possible.get(name, ()) or self._past.get((name, value), 0) >= _earliest(event)

    def allow(self, attributes: dict[str, Any]) -> bool:
        """Return whether `attributes` are possible."""
        same_names = attributes.keys() == self.possible.keys()
        return same_names and all(value in self.possible[name] for name, value in attributes.items())


def _earliest(event: EventRow) -> int:
    """Return the earliest time at which the transaction of an event can have read anything."""
    return event.received - CLOCK_ERROR_US


def merged(events: Iterable[EventRow], attributes: Mapping[tuple[str, int], dict[str, Any]]) -> dict[str, Traits]:
    """Return the possible attributes of every contact: those of its events, merged in the order of the commits."""
    contacts: dict[str, Traits] = defaultdict(Traits)
    for event in events:
        contacts[event.contact_id].merge(event, attributes.get((event.org, event.payload.get("n", -1)), {}))
    return contacts
