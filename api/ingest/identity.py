"""The contacts of a batch of events: find the contact of each event, and plan what to write.

`workbench.language.contact.resolve_identity` decides about one event, given the owners of its identifiers. This module
applies it to the events of a transaction in order, so that the second event of a new contact finds the contact that the
first one creates.

Most events come from contacts that are stored with exactly these identifiers. `recognise` assigns those with one lookup
by the leading identifier and no lock. The others go through `lock_owners` and `resolve_contacts`; `contact_writes`
turns the plan into statements. Live ingest, the chain follower and the import of history all take this path.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from api.clock import to_us, uuid7
from api.ingest.parse import ParsedEvent
from api.store import events as store
from api.store.database import RefusedDataError, Transaction
from api.store.events import ConflictRows, ContactRows, IdentifierRows, Owner
from api.store.locks import hold_contacts, hold_identifiers
from api.store.query import Call, run
from workbench.language.codec import Json, encode
from workbench.language.contact import (
    MAX_CONTACT_ATTRIBUTES,
    MAX_CONTACT_ATTRIBUTES_BYTES,
    Conflict,
    IdentifierKey,
    IdentifierKind,
    resolve_identity,
)

OrgKey: TypeAlias = tuple[int, IdentifierKey]  # organization, key of an identifier
OrgContact: TypeAlias = tuple[int, str]  # organization, contact


class ContactIdentifiers(msgspec.Struct):
    """Identifiers of a contact; `email` is sealed. `raw_wallet`, `email_domain`: only of a new wallet or email."""

    wallet: str | None = None
    email: str | None = None
    external_id: str | None = None
    raw_wallet: str | None = None
    email_domain: str | None = None

    def kinds(self) -> frozenset[IdentifierKind]:
        return _KINDS[self.wallet is not None, self.email is not None, self.external_id is not None]


_KINDS = {
    flags: frozenset(kind for kind, is_set in zip(IdentifierKind, flags, strict=True) if is_set)
    for flags in itertools.product((False, True), repeat=3)
}


class ContactPlan(msgspec.Struct):
    """The writes to contacts that follow from a batch of events.

    `identifiers`: the identifiers, after the batch, of every contact that an event was assigned to, by contact id.
    `created`: new contacts. `gained`: the new identifiers of existing contacts. `lost_email`: existing contacts with an
    address that moved to another contact; a later replacement is in `gained`. `owned`: the identifiers with a new
    owner. `attributes`: the attributes to merge.
    """

    identifiers: dict[str, ContactIdentifiers | Owner] = {}
    created: dict[OrgContact, ContactIdentifiers] = {}
    gained: dict[OrgContact, ContactIdentifiers] = {}
    lost_email: set[OrgContact] = set()
    owned: dict[OrgKey, str] = {}
    attributes: dict[OrgContact, dict[str, Json]] = {}
    conflicts: list[tuple[ParsedEvent, Conflict]] = []

    def changed_contacts(self) -> set[str]:
        """Return the ids of the contacts that existed before and will be written."""
        changed = {*self.gained, *self.lost_email, *self.attributes}.difference(self.created)
        return {contact_id for _, contact_id in changed}

    def creates_owner_of(self, event: ParsedEvent) -> bool:
        """Return whether the contact of an event is new and has all identifiers that the event carries."""
        created = self.created.get((event.org_id, event.contact_id))
        return created is not None and _has_all(created, event)


def find_leading_owners(events: Sequence[ParsedEvent]) -> Call[list[Owner]]:
    """Return the call that finds the owner of each event's leading identifier and compares its attributes."""
    leading = [event.keys[0] for event in events]
    return store.find_owners(
        [event.org_id for event in events],
        [key[0] for key in leading],
        [key[1] for key in leading],
        [event.attributes for event in events],
    )


def recognise(events: Sequence[ParsedEvent], owners: Sequence[Owner]) -> dict[str, ContactIdentifiers | Owner]:
    """Assign events to the owners of their leading identifiers, if an owner has all identifiers of the event.

    `owners` is the result of `find_leading_owners(events)`. Returns the owners by contact id. The other events stay
    without a contact, for `resolve_contacts`.
    """
    recognised: dict[str, ContactIdentifiers | Owner] = {}
    for event in events:
        event.contact_id, event.attributes_changed = "", True
    for owner in owners:
        if assign_owner(events[owner.position], owner):
            recognised[owner.contact_id] = owner
    return recognised


def assign_owner(event: ParsedEvent, owner: Owner) -> bool:
    """Assign the event to the owner of its leading identifier, unless it has identifiers that the owner lacks."""
    if not _has_all(owner, event):
        return False
    event.contact_id, event.attributes_changed = owner.contact_id, not owner.has_attributes
    return True


async def lock_identifiers(tx: Transaction, events: Sequence[ParsedEvent]) -> dict[OrgKey, Owner]:
    """Lock all identifiers of `events` and return their owners; identifiers without an owner are left out."""
    keys = _distinct_keys(events)
    _, owners = await run(tx, hold_identifiers(keys), _find_owners(keys))
    return {keys[owner.position]: owner for owner in owners}


async def lock_owners(tx: Transaction, events: Sequence[ParsedEvent], written: Collection[str]) -> dict[OrgKey, Owner]:
    """Lock all identifiers of `events` and the contacts that own them, and return the owners.

    `written`: contacts that this transaction writes for other reasons.
    """
    owners = await lock_identifiers(tx, events)
    if not owners:
        return owners
    keys = _distinct_keys(events)
    # All contacts are locked in one sorted statement: with two, another batch could hold a lock of the second and wait
    # for one of the first. The owners are read again, as they may have changed before their locks were granted.
    _, current = await run(
        tx, hold_contacts({*written, *(owner.contact_id for owner in owners.values())}), _find_owners(keys)
    )
    return {keys[owner.position]: owner for owner in current}


async def find_all_owners(tx: Transaction, events: Sequence[ParsedEvent]) -> dict[OrgKey, Owner]:
    """Return the owners of all identifiers of `events`, without locks: for dry runs."""
    keys = _distinct_keys(events)
    (owners,) = await run(tx, _find_owners(keys))
    return {keys[owner.position]: owner for owner in owners}


def resolve_contacts(
    events: Sequence[ParsedEvent],
    owners: Mapping[OrgKey, Owner],
    at_us: int,
    recognised: Mapping[str, ContactIdentifiers | Owner] | None = None,
) -> ContactPlan:
    """Assign a contact to every event, in order, and return what has to be written.

    `owners`: the owner of every identifier of the events without a contact. `recognised`: the contacts of the others.
    """
    plan = ContactPlan(dict(recognised or {}))
    owner_of: dict[int, dict[IdentifierKey, str]] = defaultdict(dict)
    kinds: dict[str, frozenset[IdentifierKind]] = {}
    for (org_id, key), owner in owners.items():
        contact_id = owner_of[org_id][key] = owner.contact_id
        if contact_id not in kinds:
            current = ContactIdentifiers(owner.wallet, owner.email, owner.external_id)
            plan.identifiers[contact_id], kinds[contact_id] = current, current.kinds()

    # A recognised event takes part if its contact may change: an earlier event of the batch can take an identifier
    # away.
    unsettled = [event for event in events if not event.contact_id or event.contact_id in kinds]
    for event in unsettled:
        if event.contact_id:
            event.attributes_changed = True  # they were compared with a contact that the event may not end up with
            for key in event.keys:
                owner_of[event.org_id].setdefault(key, event.contact_id)

    for event in unsettled:
        resolution = resolve_identity(event.keys, owner_of[event.org_id], kinds)
        event.contact_id = resolution.contact_id or event.new_contact_id(at_us)
        if resolution.contact_id is None:
            created = plan.created[event.org_id, event.contact_id] = ContactIdentifiers()
            plan.identifiers[event.contact_id], kinds[event.contact_id] = created, frozenset()
        if resolution.gained:
            _assign_identifiers(plan, event, resolution.gained, owner_of[event.org_id], kinds)
        plan.conflicts += [(event, conflict) for conflict in resolution.conflicts]

    # If one event changes attributes, the attributes of all events of that contact are merged, in order: a later event
    # was compared with the stored contact, and may restore a value that an earlier one changed.
    changed = {event.contact_id for event in events if event.attributes_changed}
    for event in events:
        if event.body.attributes and event.contact_id in changed:
            plan.attributes.setdefault((event.org_id, event.contact_id), {}).update(event.body.attributes)
    return plan


def contact_writes(
    plan: ContactPlan,
    at: datetime,
    also_locked: Collection[str] = (),
    add_contacts: Callable[[ContactRows, datetime], Call[None]] = store.add_contacts,
) -> list[Call[None]]:
    """Return the calls that write a plan, and that lock the contacts with new attributes and those of `also_locked`.

    Contacts that gain or lose identifiers are locked already (`lock_owners`). Raises
    RefusedDataError(ATTRIBUTES_TOO_LARGE) if a new contact would have too many attributes; for existing contacts
    Postgres raises it.
    """
    calls: list[Call[None]] = []
    if plan.created:
        rows = _contact_rows(plan.created)
        for contact in plan.created:
            attributes = plan.attributes.get(contact, {})
            text = encode(attributes)
            if len(attributes) > MAX_CONTACT_ATTRIBUTES or len(text) > MAX_CONTACT_ATTRIBUTES_BYTES:
                raise RefusedDataError(store.ATTRIBUTES_TOO_LARGE)
            rows.attributes.append(text.decode())
        calls.append(add_contacts(rows, at))
    if plan.lost_email:
        org_ids, ids = zip(*plan.lost_email, strict=True)
        calls.append(store.remove_emails(org_ids, ids, at))
    if plan.gained:
        calls.append(store.add_contact_identifiers(_contact_rows(plan.gained), at))
    if plan.owned:
        owned = IdentifierRows()
        for (org_id, (kind, digest)), contact_id in plan.owned.items():
            owned.org_ids.append(org_id)
            owned.kinds.append(int(kind))
            owned.digests.append(digest)
            owned.contact_ids.append(contact_id)
        calls.append(store.assign_identifiers(owned, at))
    merged = {contact: attributes for contact, attributes in plan.attributes.items() if contact not in plan.created}
    if locked := {contact_id for _, contact_id in merged}.union(also_locked):
        calls.append(hold_contacts(locked))
    if merged:
        org_ids, ids = zip(*merged, strict=True)
        texts = [encode(attributes).decode() for attributes in merged.values()]
        calls.append(store.merge_attributes(org_ids, ids, texts, at))
    if plan.conflicts:
        conflicts, at_us = ConflictRows(), to_us(at)
        for event, conflict in plan.conflicts:
            conflicts.org_ids.append(event.org_id)
            conflicts.ids.append(uuid7(at_us))
            conflicts.event_ids.append(event.event_id)
            conflicts.contact_ids.append(event.contact_id)
            conflicts.other_contact_ids.append(conflict.other_contact_id)
            conflicts.kinds.append(int(conflict.key[0]))
            conflicts.digests.append(conflict.key[1])
            conflicts.outcomes.append(conflict.outcome)
        calls.append(store.add_conflicts(conflicts, at))
    return calls


def _has_all(contact: ContactIdentifiers | Owner, event: ParsedEvent) -> bool:
    sent = event.body.identifiers
    return (
        (sent.wallet is None or sent.wallet == contact.wallet)
        and (not event.emails or contact.email in event.emails)
        and (sent.external_id is None or sent.external_id == contact.external_id)
    )


def _distinct_keys(events: Sequence[ParsedEvent]) -> list[OrgKey]:
    return list(dict.fromkeys((event.org_id, key) for event in events for key in event.keys))


def _find_owners(keys: Sequence[OrgKey]) -> Call[list[Owner]]:
    return store.find_owners(
        [org_id for org_id, _ in keys], [key[0] for _, key in keys], [key[1] for _, key in keys], [""] * len(keys)
    )


def _assign_identifiers(
    plan: ContactPlan,
    event: ParsedEvent,
    keys: Sequence[IdentifierKey],
    owner_of: dict[IdentifierKey, str],
    kinds: dict[str, frozenset[IdentifierKind]],
) -> None:
    """Make the contact of an event the owner of some of the event's identifiers."""
    contact = event.org_id, event.contact_id
    gained = plan.created.get(contact) or plan.gained.setdefault(contact, ContactIdentifiers())
    sent = event.body.identifiers
    for key in keys:
        match key[0]:
            case IdentifierKind.WALLET:
                gained.wallet, gained.raw_wallet = sent.wallet, sent.wallet_raw
            case IdentifierKind.EMAIL:
                gained.email = event.email
                gained.email_domain = (sent.email or "").rpartition("@")[2]
                if (former := owner_of.get(key)) is not None:
                    _remove_email(plan, (event.org_id, former), event.emails, kinds)
            case IdentifierKind.EXTERNAL_ID:
                gained.external_id = sent.external_id
        owner_of[key] = plan.owned[event.org_id, key] = event.contact_id
    current = plan.identifiers[event.contact_id]
    merged = ContactIdentifiers(
        gained.wallet or current.wallet, gained.email or current.email, gained.external_id or current.external_id
    )
    kinds[event.contact_id] = merged.kinds()
    if contact not in plan.created:
        plan.identifiers[event.contact_id] = merged


def _remove_email(
    plan: ContactPlan, contact: OrgContact, emails: tuple[str, ...], kinds: dict[str, frozenset[IdentifierKind]]
) -> None:
    former = plan.identifiers[contact[1]]
    if former.email not in emails:
        return  # the contact had replaced the address already; only the identifier moves
    for identifiers in (former, plan.gained.get(contact), plan.created.get(contact)):
        if isinstance(identifiers, ContactIdentifiers):
            identifiers.email = identifiers.email_domain = None
    kinds[contact[1]] -= {IdentifierKind.EMAIL}
    if contact not in plan.created:
        plan.lost_email.add(contact)


def _contact_rows(contacts: Mapping[OrgContact, ContactIdentifiers]) -> ContactRows:
    rows = ContactRows()
    for (org_id, contact_id), identifiers in contacts.items():
        rows.org_ids.append(org_id)
        rows.ids.append(contact_id)
        rows.emails.append(identifiers.email)
        rows.email_domains.append(identifiers.email_domain)
        rows.wallets.append(identifiers.wallet)
        rows.raw_wallets.append(identifiers.raw_wallet)
        rows.external_ids.append(identifiers.external_id)
    return rows
