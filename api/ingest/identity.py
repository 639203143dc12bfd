"""The contacts of a batch of events: find the contact of each event, and plan what to write.

`workbench.language.contact.resolve_identity` decides about one event, given the owners of its identifiers.
`resolve_contacts` applies it to the events of a transaction in order, so that the second event of a new contact finds
the contact that the first one creates. It is a pure function: the caller reads the owners, and writes the plan.

Most events come from contacts that are stored with exactly these identifiers. `recognise` finds those with one lookup
by the leading identifier and no lock. Only for the others does the caller lock identifiers and their owners
(`lock_owners`). Live ingest, the chain follower and the import of history all take this path.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from api.clock import to_us, uuid7
from api.crypto import INDEX
from api.ingest.parse import IdentifiedEvent
from api.store import events as store
from api.store.database import RefusedDataError, Transaction, TransactionConflictError
from api.store.events import Owner
from api.store.locks import hold_contacts, hold_identifiers
from api.store.query import Call, run
from workbench.language.codec import Json, decode, encode
from workbench.language.contact import (
    Conflict,
    IdentifierKey,
    IdentifierKind,
    exceeds_attribute_limits,
    fit_attributes,
    resolve_identity,
)
from workbench.language.problem import Problems

OrgKey: TypeAlias = tuple[int, IdentifierKey]  # organization, key of an identifier
OrgContact: TypeAlias = tuple[int, str]  # organization, contact


class ContactIdentifiers(msgspec.Struct):
    """Identifiers of a contact; `email` is sealed. `raw_wallet`, `email_domain`: set only for a new wallet or email."""

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
    """The contact of each event of a batch, and the writes to contacts that follow.

    `contact_ids`: the contacts of the events, in their order. `identifiers`: the identifiers of all these contacts
    after the batch, by contact id. `created`: new contacts. `gained`: the new identifiers of existing contacts.
    `lost_email`: existing contacts with an address that moved to another contact; a later replacement is in `gained`.
    `owned`: the identifiers with a new owner. `attributes`: the attributes to merge.
    """

    contact_ids: list[str]
    identifiers: dict[str, ContactIdentifiers | Owner]
    created: dict[OrgContact, ContactIdentifiers] = {}
    gained: dict[OrgContact, ContactIdentifiers] = {}
    lost_email: set[OrgContact] = set()
    owned: dict[OrgKey, str] = {}
    attributes: dict[OrgContact, dict[str, Json]] = {}
    conflicts: list[tuple[IdentifiedEvent, str, Conflict]] = []  # with the contact of the event


def find_key_owners(keys: Sequence[OrgKey]) -> Call[list[Owner]]:
    """Return the call that finds the owners of identifiers, by their positions."""
    return store.find_owners(
        [org_id for org_id, _ in keys], [key[0] for _, key in keys], [key[1] for _, key in keys], [""] * len(keys)
    )


def recognise(events: Sequence[IdentifiedEvent], leading_owners: Iterable[Owner]) -> list[Owner | None]:
    """Return the owner of each event's leading identifier if it has all identifiers of the event, else None.

    `leading_owners`: the result of `find_owners` for the leading identifiers of these events, in their order.
    """
    recognised: list[Owner | None] = [None] * len(events)
    for owner in leading_owners:
        event = events[owner.position]
        sent = event.body.identifiers
        if (
            (sent.wallet is None or sent.wallet == owner.wallet)
            and (not event.emails or owner.email in event.emails)
            and (sent.external_id is None or sent.external_id == owner.external_id)
        ):
            recognised[owner.position] = owner
    return recognised


async def lock_identifiers(tx: Transaction, events: Sequence[IdentifiedEvent]) -> dict[OrgKey, Owner]:
    """Lock all identifiers of `events` and return their owners; identifiers without an owner are left out."""
    keys = _distinct_keys(events)
    _, owners = await run(tx, hold_identifiers(keys), find_key_owners(keys))
    return {keys[owner.position]: owner for owner in owners}


async def lock_owners(
    tx: Transaction, events: Sequence[IdentifiedEvent], recognised: Sequence[Owner | None], written: Collection[str]
) -> dict[OrgKey, Owner]:
    """Lock all identifiers of the events that were not recognised, and the contacts that own them; return the owners.

    `written`: contacts that this transaction writes for other reasons. Raises TransactionConflictError if a recognised
    event of a locked contact would not be recognised any more.
    """
    unknown = [event for event, owner in zip(events, recognised, strict=True) if owner is None]
    owners = await lock_identifiers(tx, unknown)
    if not owners:
        return owners
    keys = _distinct_keys(unknown)
    contact_ids = {owner.contact_id for owner in owners.values()}
    known = [
        (event, owner.contact_id)
        for event, owner in zip(events, recognised, strict=True)
        if owner and owner.contact_id in contact_ids
    ]
    known_events = [event for event, _ in known]
    # All contacts are locked in one sorted statement: with two, another batch could hold a lock of the second and wait
    # for one of the first. The owners are read again, as they may have changed before their locks were granted.
    _, current, leading = await run(
        tx,
        hold_contacts({*written, *contact_ids}),
        find_key_owners(keys),
        find_key_owners([(event.org_id, event.keys[0]) for event in known_events]),
    )
    for (_, contact_id), owner in zip(known, recognise(known_events, leading), strict=True):
        if owner is None or owner.contact_id != contact_id:
            raise TransactionConflictError("an identifier of a recognised event has moved")  # retried
    return {keys[owner.position]: owner for owner in current}


async def find_all_owners(tx: Transaction, events: Sequence[IdentifiedEvent]) -> dict[OrgKey, Owner]:
    """Return the owners of all identifiers of `events`, without locks: for dry runs."""
    keys = _distinct_keys(events)
    (owners,) = await run(tx, find_key_owners(keys))
    return {keys[owner.position]: owner for owner in owners}


def resolve_contacts(
    events: Sequence[IdentifiedEvent],
    recognised: Sequence[Owner | None],
    locked_owners: Mapping[OrgKey, Owner],
    new_ids: Iterable[str],
) -> ContactPlan:
    """Return the contact of every event, in order, and what has to be written.

    `recognised`: the contacts of the events that `recognise` found; it must hold still if the contact is locked.
    `locked_owners`: the owners of all identifiers of the other events. `new_ids`: ids for new contacts, at least one
    for each event that was not recognised.
    """
    contact_ids = [owner.contact_id if owner is not None else "" for owner in recognised]
    plan = ContactPlan(contact_ids, {owner.contact_id: owner for owner in recognised if owner is not None})
    owner_of: dict[int, dict[IdentifierKey, str]] = defaultdict(dict)
    kinds: dict[str, frozenset[IdentifierKind]] = {}
    for (org_id, key), owner in locked_owners.items():
        contact_id = owner_of[org_id][key] = owner.contact_id
        if contact_id not in kinds:
            current = ContactIdentifiers(owner.wallet, owner.email, owner.external_id)
            plan.identifiers[contact_id], kinds[contact_id] = current, current.kinds()

    # A recognised event is included if its contact may change: an earlier event of the batch can take an identifier
    # from it.
    unsettled = [position for position, contact_id in enumerate(contact_ids) if not contact_id or contact_id in kinds]
    for position in unsettled:
        if contact_ids[position]:
            for key in events[position].keys:
                owner_of[events[position].org_id].setdefault(key, contact_ids[position])

    free_ids = iter(new_ids)
    for position in unsettled:
        event = events[position]
        owners = owner_of[event.org_id]
        hidden = [
            key
            for key in event.keys
            if key[0] is IdentifierKind.EMAIL
            and (owner_id := owners.get(key))
            and plan.identifiers[owner_id].email not in event.emails
        ]
        resolution = resolve_identity(event.keys, owners, kinds, hidden)
        contact_id = contact_ids[position] = resolution.contact_id or next(free_ids)
        if resolution.contact_id is None:
            created = plan.created[event.org_id, contact_id] = ContactIdentifiers()
            plan.identifiers[contact_id], kinds[contact_id] = created, frozenset()
        if resolution.gained:
            _assign_identifiers(plan, event, contact_id, resolution.gained, owners, kinds)
        plan.conflicts += [(event, contact_id, conflict) for conflict in resolution.conflicts]

    # If one event changes attributes, the attributes of all events of that contact are merged, in order: a later event
    # was compared with the stored contact, and may restore a value that an earlier one changed. Attributes of an
    # unsettled event count as changed: its final contact may not be the one that they were compared with.
    changed = {contact_ids[position] for position in unsettled}
    changed |= {owner.contact_id for owner in recognised if owner is not None and not owner.has_attributes}
    for event, contact_id in zip(events, contact_ids, strict=True):
        if event.body.attributes and contact_id in changed:
            plan.attributes.setdefault((event.org_id, contact_id), {}).update(event.body.attributes)
    return plan


async def fit_plan(
    tx: Transaction, plan: ContactPlan, events: Sequence[IdentifiedEvent], also_locked: Collection[str]
) -> dict[str, Problems]:
    """Leave the attributes out of a plan for which contacts have no room; return them as problems by event id.

    Locks the contacts that the plan changes and those of `also_locked`.
    """
    stored = [contact for contact in plan.attributes if contact not in plan.created]
    org_ids, ids = [org_id for org_id, _ in stored], [contact_id for _, contact_id in stored]
    _, texts = await run(tx, hold_contacts({*ids, *also_locked}), store.read_attributes(org_ids, ids))
    attributes: dict[OrgContact, dict[str, Json]] = {
        contact: decode(texts[contact[1]].encode()) if contact[1] in texts else {} for contact in plan.attributes
    }
    left_out: dict[str, Problems] = {}
    for contact in plan.attributes:
        plan.attributes[contact] = {}
    for event, contact_id in zip(events, plan.contact_ids, strict=True):
        contact = event.org_id, contact_id
        if event.body.attributes and contact in attributes:
            kept, problems = fit_attributes(attributes[contact], event.body.attributes)
            attributes[contact] |= kept
            plan.attributes[contact] |= kept
            if problems:
                left_out[event.event_id] = problems
    plan.attributes = {contact: kept for contact, kept in plan.attributes.items() if kept}
    return left_out


def contact_writes(
    plan: ContactPlan, at: datetime, also_locked: Collection[str] = (), created_us: Mapping[str, int] | None = None
) -> list[Call[None]]:
    """Return the calls that write a plan, and that lock the contacts with new attributes and those of `also_locked`.

    `created_us`: when new contacts were created, by default at `at`. Contacts that gain or lose identifiers are locked
    already (`lock_owners`). Raises RefusedDataError(ATTRIBUTES_TOO_LARGE) if a new contact would have too many
    attributes; for existing contacts Postgres raises it. `fit_plan` leaves those out.
    """
    calls: list[Call[None]] = []
    at_us = to_us(at)
    if plan.created:
        new_attributes = [plan.attributes.get(contact, {}) for contact in plan.created]
        if any(map(exceeds_attribute_limits, new_attributes)):
            raise RefusedDataError(store.ATTRIBUTES_TOO_LARGE)
        texts = [encode(attributes).decode() for attributes in new_attributes]
        times_us = [(created_us or {}).get(contact_id, at_us) for _, contact_id in plan.created]
        calls.append(store.add_contacts(at, texts, times_us, *_contact_columns(plan.created)))
    if plan.lost_email:
        org_ids, ids = zip(*plan.lost_email, strict=True)
        calls.append(store.remove_emails(org_ids, ids, at))
    if plan.gained:
        calls.append(store.add_contact_identifiers(at, *_contact_columns(plan.gained)))
    if plan.owned:
        calls.append(store.assign_identifiers(plan.owned, at))
    merged = {contact: attributes for contact, attributes in plan.attributes.items() if contact not in plan.created}
    if locked := {contact_id for _, contact_id in merged}.union(also_locked):
        calls.append(hold_contacts(locked))
    if merged:
        org_ids, ids = zip(*merged, strict=True)
        texts = [encode(attributes).decode() for attributes in merged.values()]
        calls.append(store.merge_attributes(org_ids, ids, texts, at))
    if plan.conflicts:
        rows = [
            (
                *(event.org_id, uuid7(at_us), event.event_id, contact_id, conflict.other_contact_id),
                *(conflict.key[0], conflict.key[1][:INDEX], conflict.outcome),
            )
            for event, contact_id, conflict in plan.conflicts
        ]
        calls.append(store.add_conflicts(at, *zip(*rows, strict=True)))
    return calls


def _distinct_keys(events: Sequence[IdentifiedEvent]) -> list[OrgKey]:
    return list(dict.fromkeys((event.org_id, key) for event in events for key in event.keys))


def _assign_identifiers(
    plan: ContactPlan,
    event: IdentifiedEvent,
    contact_id: str,
    keys: Sequence[IdentifierKey],
    owner_of: dict[IdentifierKey, str],
    kinds: dict[str, frozenset[IdentifierKind]],
) -> None:
    """Make the contact of an event the owner of some of the event's identifiers."""
    contact = event.org_id, contact_id
    gained = plan.created.get(contact) or plan.gained.setdefault(contact, ContactIdentifiers())
    sent = event.body.identifiers
    for key in keys:
        match key[0]:
            case IdentifierKind.WALLET:
                gained.wallet, gained.raw_wallet = sent.wallet, sent.wallet_raw
            case IdentifierKind.EMAIL:
                gained.email = event.emails[0]
                gained.email_domain = (sent.email or "").rpartition("@")[2]
                if (former := owner_of.get(key)) not in (None, contact_id):
                    _remove_email(plan, (event.org_id, former), event.emails, kinds)
            case IdentifierKind.EXTERNAL_ID:
                gained.external_id = sent.external_id
        owner_of[key] = plan.owned[event.org_id, key] = contact_id
    current = plan.identifiers[contact_id]
    merged = ContactIdentifiers(
        gained.wallet or current.wallet, gained.email or current.email, gained.external_id or current.external_id
    )
    kinds[contact_id] = merged.kinds()
    if contact not in plan.created:
        plan.identifiers[contact_id] = merged


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


def _contact_columns(contacts: Mapping[OrgContact, ContactIdentifiers]) -> Iterable[tuple[Any, ...]]:
    """Return the columns org_ids, ids, emails, email_domains, wallets, raw_wallets and external_ids."""
    rows = [
        (org_id, contact_id, own.email, own.email_domain, own.wallet, own.raw_wallet, own.external_id)
        for (org_id, contact_id), own in contacts.items()
    ]
    return zip(*rows, strict=True)
