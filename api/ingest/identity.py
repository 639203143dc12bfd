"""The contacts of a batch of events: find the contact of each event, and plan what to write.

`workbench.language.contact.resolve_identity` decides about one event, given the owners of its identifiers.
`resolve_contacts` applies it to the events of a transaction in order, so that the second event of a new contact finds
the contact that the first one creates. It is a pure function: the caller reads the owners, and writes the plan.

Most events come from contacts that are stored with exactly these identifiers. `recognise` finds those with one lookup
by the leading identifier and no lock. Only for the others does the caller lock identifiers and their owners
(`lock_owners`). Live ingest, the chain follower and the import of history all take this path.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from api.clock import to_us, uuid7
from api.crypto import INDEX
from api.ingest.parse import IdentifiedEvent
from api.store import events as store
from api.store.changes import note_attributes, note_values
from api.store.database import RefusedDataError, Transaction, TransactionConflictError
from api.store.events import Owner
from api.store.locks import hold_contacts, hold_identifiers
from api.store.query import Call, run
from workbench.language.codec import Json, decode, encode, json_equal
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


_FIELDS = ("walletAddress", "email", "externalId")  # in the order of ContactIdentifiers
_SAME_MOMENT_US = 1_000_000
_KINDS = {
    flags: frozenset(kind for kind, is_set in zip(IdentifierKind, flags, strict=True) if is_set)
    for flags in itertools.product((False, True), repeat=3)
}


class ContactChange(msgspec.Struct, frozen=True):
    """A change of a contact by the event at `position` of the batch."""

    contact: OrgContact
    position: int
    event: IdentifiedEvent


class IdentifierChange(ContactChange, frozen=True):
    """An identifier gets another value; None: it has none. Emails are sealed."""

    field: str
    old: str | None
    new: str | None


class AttributeChange(ContactChange, frozen=True):
    """Attributes that may have other values. `earlier`: the values of the same from earlier events of the batch."""

    attributes: dict[str, Json]
    earlier: dict[str, Json]

    @property
    def text(self) -> str:
        """The attributes as JSON."""
        same = self.attributes is self.event.body.attributes
        return self.event.attributes if same else encode(self.attributes).decode()


class ContactPlan(msgspec.Struct):
    """The contact of each event of a batch, and the writes to contacts that follow.

    `contact_ids`: the contacts of the events, in their order. `identifiers`: the identifiers of all these contacts
    after the batch, by contact id. `created`: new contacts. `gained`: the new identifiers of existing contacts.
    `lost_email`: existing contacts with an address that moved to another contact; a later replacement is in `gained`.
    `owned`: the identifiers with a new owner. `attributes`: the attributes to merge. `creators`: the events that create
    contacts. `identifier_changes`, `attribute_changes`: what the other events change, in their order.
    """

    contact_ids: list[str]
    identifiers: dict[str, ContactIdentifiers | Owner]
    created: dict[OrgContact, ContactIdentifiers] = {}
    gained: dict[OrgContact, ContactIdentifiers] = {}
    lost_email: set[OrgContact] = set()
    owned: dict[OrgKey, str] = {}
    attributes: dict[OrgContact, dict[str, Json]] = {}
    conflicts: list[tuple[IdentifiedEvent, str, Conflict]] = []  # with the contact of the event
    creators: dict[OrgContact, IdentifiedEvent] = {}
    identifier_changes: list[IdentifierChange] = []
    attribute_changes: list[AttributeChange] = []


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
    affected = [
        (event, owner.contact_id)
        for event, owner in zip(events, recognised, strict=True)
        if owner and owner.contact_id in contact_ids
    ]
    affected_events = [event for event, _ in affected]
    # All contacts are locked in one sorted statement: with two, another batch could hold a lock of the second and wait
    # for one of the first. The owners are read again, as they may have changed before their locks were granted.
    _, current, leading = await run(
        tx,
        hold_contacts({*written, *contact_ids}),
        find_key_owners(keys),
        find_key_owners([(event.org_id, event.keys[0]) for event in affected_events]),
    )
    for (_, contact_id), owner in zip(affected, recognise(affected_events, leading), strict=True):
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
            plan.creators[event.org_id, contact_id] = event
            plan.identifiers[contact_id], kinds[contact_id] = created, frozenset()
        if resolution.gained:
            _assign_identifiers(plan, position, event, contact_id, resolution.gained, owners, kinds)
        plan.conflicts += [(event, contact_id, conflict) for conflict in resolution.conflicts]

    # If one event changes attributes, the attributes of all events of that contact are merged, in order: a later event
    # was compared with the stored contact, and may restore a value that an earlier one changed. Attributes of an
    # unsettled event count as changed: its final contact may not be the one that they were compared with.
    changed = {contact_ids[position] for position in unsettled}
    changed |= {owner.contact_id for owner in recognised if owner is not None and not owner.has_attributes}
    for position, (event, contact_id) in enumerate(zip(events, contact_ids, strict=True)):
        if event.body.attributes and contact_id in changed:
            _plan_attributes(plan, (event.org_id, contact_id), position, event, event.body.attributes)
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
    plan.attributes, plan.attribute_changes = {}, []
    for position, (event, contact_id) in enumerate(zip(events, plan.contact_ids, strict=True)):
        contact = event.org_id, contact_id
        if event.body.attributes and contact in attributes:
            kept, problems = fit_attributes(attributes[contact], event.body.attributes)
            attributes[contact] |= kept
            if kept:
                _plan_attributes(plan, contact, position, event, kept)
            if problems:
                left_out[event.event_id] = problems
    return left_out


class PastChanges(msgspec.Struct, frozen=True):
    """The moments of the changes of an import, in microseconds: by contact and event, and of the last by contact."""

    moments_us: dict[tuple[str, str], int]
    last_us: dict[str, int]


async def date_changes(
    tx: Transaction, plan: ContactPlan, occurred_us: Mapping[str, int], at: datetime, also_locked: Collection[str]
) -> PastChanges:
    """Date the changes of an import: when their events occurred, or at `at` if the contact has changed since.

    `occurred_us`: by the id of the event. So the moments of a contact's changes are in the order of the changes. Locks
    the contacts that the plan changes and those of `also_locked`.
    """
    changes: list[ContactChange] = [*plan.identifier_changes, *plan.attribute_changes]
    last_us = {contact_id: occurred_us[event.event_id] for (_, contact_id), event in plan.creators.items()}
    if stored := {change.contact for change in changes if change.contact not in plan.created}:
        org_ids, ids = zip(*stored, strict=True)
        _, updated_us = await run(tx, hold_contacts({*ids, *also_locked}), store.read_updated(org_ids, ids))
        last_us |= updated_us
    moments_us: dict[tuple[str, str], int] = {}
    for change in sorted(changes, key=attrgetter("position")):
        event_id, contact_id = change.event.event_id, change.contact[1]
        if (contact_id, event_id) not in moments_us and contact_id in last_us:
            # Events of one moment are dated a microsecond apart, so a contact may have changed shortly after it.
            is_next = occurred_us[event_id] > last_us[contact_id] - _SAME_MOMENT_US
            dated_us = max(occurred_us[event_id] if is_next else to_us(at), last_us[contact_id] + 1)
            moments_us[contact_id, event_id] = last_us[contact_id] = dated_us
    return PastChanges(moments_us, last_us)


def sole_changes(plan: ContactPlan) -> dict[OrgContact, AttributeChange]:
    """Return the attribute changes of stored contacts for which the batch has only one such event, by contact."""
    changes = [change for change in plan.attribute_changes if change.contact not in plan.created]
    if len(changes) < 2:  # of most requests; counting takes longer than all else here
        return {change.contact: change for change in changes}
    counts = Counter(change.contact for change in changes)
    return {change.contact: change for change in changes if counts[change.contact] == 1}


def contact_writes(
    plan: ContactPlan,
    at: datetime,
    offset: int,
    also_locked: Collection[str] = (),
    created_us: Mapping[str, int] | None = None,
    past: PastChanges | None = None,
    with_events: Collection[OrgContact] = (),
) -> list[Call[None]]:
    """Return the calls that write a plan. They also lock contacts with new attributes and those in `also_locked`.

    `with_events`: contacts whose attributes the call that adds their events merges (`store.with_attributes`).
    `offset`: `database.transaction_offset`. `created_us`: when each new contact was created; by default `at`. `past`:
    the changes of an import. Contacts that gain or lose identifiers are locked already (`lock_owners`). Raises
    RefusedDataError(ATTRIBUTES_TOO_LARGE) if a new contact would have too many attributes. For an existing contact
    Postgres raises it. `fit_plan` leaves such attributes out beforehand.
    """
    calls: list[Call[None]] = []
    at_us = to_us(at)
    if plan.created:
        new_attributes = [plan.attributes.get(contact, {}) for contact in plan.created]
        if any(map(exceeds_attribute_limits, new_attributes)):
            raise RefusedDataError(store.ATTRIBUTES_TOO_LARGE)
        texts = [encode(attributes).decode() for attributes in new_attributes]
        times_us = [(created_us or {}).get(contact_id, at_us) for _, contact_id in plan.created]
        updated_us = () if past is None else [past.last_us[contact_id] for _, contact_id in plan.created]
        calls.append(store.add_contacts(at, texts, times_us, updated_us, *_contact_columns(plan.created)))
    last_us = {} if past is None else past.last_us
    steps: Counter[OrgContact] = Counter()  # of several changes of one contact
    if values := list(_value_changes(plan)):
        notes = []
        for contact, event, field, old, new in values:
            moment_us = None if past is None else past.moments_us[contact[1], event.event_id]
            notes.append((*contact, field, old, new, event.event_id, steps[contact], moment_us))
            steps[contact] += 1
        calls.append(note_values("event" if past is None else "import", at, offset, *zip(*notes, strict=True)))
    if plan.lost_email:
        lost = [(*contact, steps[contact], last_us.get(contact[1])) for contact in plan.lost_email]
        calls.append(store.remove_emails(at, *zip(*lost, strict=True)))
    if plan.gained:
        times = [(steps[contact], last_us.get(contact[1])) for contact in plan.gained]
        calls.append(store.add_contact_identifiers(at, *_contact_columns(plan.gained), *zip(*times, strict=True)))
    if plan.owned:
        calls.append(store.assign_identifiers(plan.owned, at))
    merged = {contact: attributes for contact, attributes in plan.attributes.items() if contact not in plan.created}
    if locked := {contact_id for _, contact_id in merged}.union(also_locked):
        calls.append(hold_contacts(locked))
    if noted := {contact: attributes for contact, attributes in merged.items() if contact not in with_events}:
        calls += _merge_calls(plan, noted, at, offset, past)
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


def _value_changes(plan: ContactPlan) -> Iterator[tuple[OrgContact, IdentifiedEvent, str, str | None, str | None]]:
    """Yield the changes of identifiers, and the later attributes of new contacts, with old and new values as JSON."""
    for change in plan.identifier_changes:
        old, new = (None if value is None else encode(value).decode() for value in (change.old, change.new))
        yield change.contact, change.event, change.field, old, new
    for later in plan.attribute_changes:
        if later.event is plan.creators.get(later.contact, later.event):
            continue
        for name, value in later.attributes.items():
            before = later.earlier.get(name)  # no attribute is null
            if not json_equal(value, before):
                old = None if before is None else encode(before).decode()
                yield later.contact, later.event, f"attributes.{name}", old, encode(value).decode()


def _merge_calls(
    plan: ContactPlan, merged: Mapping[OrgContact, dict[str, Json]], at: datetime, offset: int, past: PastChanges | None
) -> list[Call[None]]:
    """Return the calls that note and merge attributes of stored contacts."""
    changes = [change for change in plan.attribute_changes if change.contact in merged]
    columns: list[tuple[Any, ...]] = []
    steps: Counter[OrgContact] = Counter()
    for change in changes:
        event, contact = change.event, change.contact
        earlier = encode(change.earlier).decode() if change.earlier else ""
        moment_us = None if past is None else past.moments_us.get((contact[1], event.event_id))
        columns.append((*contact, change.text, event.event_id, steps[contact], earlier, moment_us))
        steps[contact] += 1
    org_ids, ids, texts, cause_ids, step, earlier_texts, moments_us = zip(*columns, strict=True)
    note = note_attributes(
        "event" if past is None else "import",
        *(at, offset, org_ids, ids, texts, cause_ids, step),
        earlier_texts if any(earlier_texts) else (),
        () if past is None else moments_us,
    )
    if len(merged) < len(changes):
        org_ids, ids = zip(*merged, strict=True)
        texts = tuple(encode(attributes).decode() for attributes in merged.values())
    last_steps = [steps[contact] - 1 for contact in merged]
    updated_us = () if past is None else [past.last_us.get(contact_id) for contact_id in ids]
    return [note, store.merge_attributes(org_ids, ids, texts, at, last_steps, updated_us)]


def _plan_attributes(
    plan: ContactPlan, contact: OrgContact, position: int, event: IdentifiedEvent, attributes: dict[str, Json]
) -> None:
    """Add the attributes of an event to those that the plan merges into its contact."""
    merged = plan.attributes.setdefault(contact, {})
    earlier = {name: merged[name] for name in attributes if name in merged} if merged else {}
    plan.attribute_changes.append(AttributeChange(contact, position, event, attributes, earlier))
    merged.update(attributes)


def _distinct_keys(events: Sequence[IdentifiedEvent]) -> list[OrgKey]:
    return list(dict.fromkeys((event.org_id, key) for event in events for key in event.keys))


def _assign_identifiers(
    plan: ContactPlan,
    position: int,
    event: IdentifiedEvent,
    contact_id: str,
    keys: Sequence[IdentifierKey],
    owner_of: dict[IdentifierKey, str],
    kinds: dict[str, frozenset[IdentifierKind]],
) -> None:
    """Make the contact of an event the owner of some of the event's identifiers."""
    contact = event.org_id, contact_id
    current = plan.identifiers[contact_id]
    before = current.wallet, current.email, current.external_id
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
                    _remove_email(plan, (event.org_id, former), position, event, kinds)
            case IdentifierKind.EXTERNAL_ID:
                gained.external_id = sent.external_id
        owner_of[key] = plan.owned[event.org_id, key] = contact_id
    if plan.creators.get(contact) is not event:
        after = gained.wallet, gained.email, gained.external_id
        for field, old, new in zip(_FIELDS, before, after, strict=True):
            if new not in (None, old):
                plan.identifier_changes.append(IdentifierChange(contact, position, event, field, old, new))
    merged = ContactIdentifiers(
        gained.wallet or current.wallet, gained.email or current.email, gained.external_id or current.external_id
    )
    kinds[contact_id] = merged.kinds()
    if contact not in plan.created:
        plan.identifiers[contact_id] = merged


def _remove_email(
    plan: ContactPlan,
    contact: OrgContact,
    position: int,
    event: IdentifiedEvent,
    kinds: dict[str, frozenset[IdentifierKind]],
) -> None:
    former = plan.identifiers[contact[1]]
    if former.email not in event.emails:
        return  # the contact had replaced the address already; only the identifier moves
    plan.identifier_changes.append(IdentifierChange(contact, position, event, "email", former.email, None))
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
