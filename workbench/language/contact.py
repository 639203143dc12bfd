"""Contacts: their values in filters and texts, the contact of an event, and the merge of two contacts.

Identity (docs/contract.md 4.5). The first identifier with an owner decides: wallet, then email, then external id.
Identifiers that the contact lacks are added if no other contact owns them. An email sent along with a matching wallet
moves to the wallet's contact, even from another owner; any other identifier of another contact stays there. Both are
recorded as a `Conflict`. A replaced email still leads to its contact; sent with the wallet again, it is stored again.

Merging. The values of the kept contact win. The absorbed contact's row keeps its values, so a merge can be undone, and
all its identifiers resolve to the kept contact, including those that are hidden because the kept contact has its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any, Literal

import msgspec

from workbench.language.codec import Json, as_stored, encode, json_equal
from workbench.language.event import Identifiers
from workbench.language.problem import Problem
from workbench.language.trigger import identifier_fields

MAX_CONTACT_ATTRIBUTES = 1_000  # docs/contract.md 2.1
MAX_CONTACT_ATTRIBUTES_BYTES = 262_144  # as JSON
TOO_MANY_ATTRIBUTES = f"left out: a contact has at most {MAX_CONTACT_ATTRIBUTES:,} attributes"
TOO_LARGE_ATTRIBUTES = f"left out: a contact has at most {MAX_CONTACT_ATTRIBUTES_BYTES // 1024} KB of attributes"


class ContactState(msgspec.Struct, frozen=True, gc=False):
    """A contact at the time of a step. `opted_out`: the channels it opted out of.

    `declined`: the topics whose messages it does not get.
    """

    id: str
    identifiers: Identifiers = Identifiers()
    attributes: dict[str, Json] = {}
    tags: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    opted_out: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()


def merge_identifiers(sent: Identifiers, contact: Identifiers) -> Identifiers:
    """Return the identifiers that filters and texts see: those of the event, completed from the contact."""
    return Identifiers(
        sent.wallet or contact.wallet, sent.email or contact.email, sent.external_id or contact.external_id
    )


def contact_context(contact: ContactState) -> dict[str, Any]:
    """Return the value of `contact` in a context: attributes, overridden by identifiers, id, tags and segments."""
    return {
        **contact.attributes,
        **identifier_fields(contact.identifiers),
        "id": contact.id,
        "tags": list(contact.tags),
        "segments": list(contact.segments),
    }


def exceeds_attribute_limits(attributes: dict[str, Json]) -> bool:
    """Return whether these attributes are too many, or too large, for a contact."""
    # Most contacts have few, and need no count. In Postgres an attribute takes up to 400 bytes more (`1e308` has 309
    # digits), so these take less than 240,000.
    if len(attributes) <= 100 and len(encode(attributes)) < 200_000:
        return False
    return len(attributes) > MAX_CONTACT_ATTRIBUTES or _stored_bytes(attributes) > MAX_CONTACT_ATTRIBUTES_BYTES


def fit_attributes(
    current: Mapping[str, Json], attributes: Mapping[str, Json]
) -> tuple[dict[str, Json], tuple[Problem, ...]]:
    """Return the attributes that fit into a contact with these current ones, and a problem for each of the others."""
    kept: dict[str, Json] = {}
    problems: list[Problem] = []
    count, size = len(current), _stored_bytes(current)
    for name, value in attributes.items():
        before = {name: current[name]} if name in current else {}
        added_count, added_size = 1 - len(before), _stored_bytes({name: value}) - _stored_bytes(before)
        if count + added_count > MAX_CONTACT_ATTRIBUTES:
            problems.append(Problem(f"attributes.{name}", TOO_MANY_ATTRIBUTES))
        elif size + added_size > MAX_CONTACT_ATTRIBUTES_BYTES:
            problems.append(Problem(f"attributes.{name}", TOO_LARGE_ATTRIBUTES))
        else:
            kept[name] = value
            count, size = count + added_count, size + added_size
    return kept, tuple(problems)


def _stored_bytes(attributes: Mapping[str, Json]) -> int:
    """Return the size of attributes in the form in which Postgres writes jsonb: `{"a": 1, "b": 2}`."""
    return sum(
        len(encode(name)) + len(format(value, "f") if isinstance(value, Decimal) else encode(value)) + len(": , ")
        for name, value in attributes.items()
    )


class ChangeOrder(IntEnum):
    """The point at which a change of a contact takes effect, relative to an event at the same moment.

    Before the event wakes entries; before it starts one; after that.
    """

    BEFORE_WAKING = 0
    BEFORE_START = 1
    AFTER_START = 2


class ValueChange(msgspec.Struct, frozen=True, gc=False):
    """A change in the history of a contact (docs/contacts.md#history), or of a topic (`topics.NAME`, True: wanted).

    A field of its own, `suppressed`, says that a bounce or complaint closed the contact's address.
    It took effect at `at`, and if there is an `event_id`, at the moment of that event in this `order`. `old`, `new`:
    UNSET if there was, or is, no value. `is_own`: a step of the automation itself made it.
    """

    at: datetime
    field: str
    old: Json | msgspec.UnsetType
    new: Json | msgspec.UnsetType
    event_id: str = ""
    order: ChangeOrder = ChangeOrder.BEFORE_WAKING
    is_own: bool = False


def contact_before(contact: ContactState, changes: Sequence[ValueChange]) -> ContactState:
    """Return the contact as it was before these changes, which are all since then, in order."""
    first: dict[str, ValueChange] = {}
    for change in changes:
        first.setdefault(change.field, change)
    for field, change in first.items():
        contact = _write_field(contact, field, change.old)
    return contact


def apply_change(contact: ContactState, change: ValueChange) -> ContactState:
    """Return the contact after a change. Tags and opt-outs that are both in `old` and in `new` stay as they are."""
    if change.field == "suppressed":  # a bounce or a complaint closed the address, without a choice of the contact
        return msgspec.structs.replace(contact, opted_out=tuple(dict.fromkeys((*contact.opted_out, "email"))))
    if change.field not in ("tags", "optedOut"):
        return _write_field(contact, change.field, change.new)
    old, new = (list(value) if isinstance(value, list) else [] for value in (change.old, change.new))
    current = contact.tags if change.field == "tags" else contact.opted_out
    kept = [text for text in current if text in new or text not in old]
    return _write_field(contact, change.field, [*kept, *(text for text in new if text not in old + kept)])


def _write_field(contact: ContactState, field: str, value: Json | msgspec.UnsetType) -> ContactState:
    kind, _, name = field.partition(".")
    if kind == "attributes":
        attributes = {**contact.attributes, name: value}
        if value is msgspec.UNSET:
            del attributes[name]
        elif name not in contact.attributes:  # in stored order, so that a text prints the same after any change
            attributes = as_stored(attributes)
        return msgspec.structs.replace(contact, attributes=attributes)
    value = None if value is msgspec.UNSET else value
    texts = tuple(map(str, value)) if isinstance(value, list) else ()
    match kind:
        case "tags":
            return msgspec.structs.replace(contact, tags=texts)
        case "optedOut":
            return msgspec.structs.replace(contact, opted_out=texts)
        case "segments":
            return msgspec.structs.replace(contact, segments=_with_member(contact.segments, name, is_in=bool(value)))
        case "topics":
            return msgspec.structs.replace(contact, declined=_with_member(contact.declined, name, is_in=not value))
        case "email" | "walletAddress" | "externalId":
            (column, *_) = _IDENTIFIER_COLUMNS[kind]
            identifiers = msgspec.structs.replace(contact.identifiers, **{column: value})
            return msgspec.structs.replace(contact, identifiers=identifiers)
        case _:
            return contact  # `mergedInto`, `suppressed`: before it, the contact had the same values


def _with_member(names: Iterable[str], name: str, *, is_in: bool) -> tuple[str, ...]:
    """Return sorted names with or without this one."""
    return tuple(sorted({*names, name} if is_in else {*names} - {name}))


class IdentifierKind(IntEnum):
    """The kinds of identifier in the order in which they decide; the numbers are those in `identities.kind`."""

    WALLET = 1
    EMAIL = 2
    EXTERNAL_ID = 3


IdentifierKey = tuple[IdentifierKind, str]
"""An identifier in the store: its kind and the blind index of its value (there are two while a secret is rotated)."""
_IDENTIFIER_FIELDS = dict(zip(IdentifierKind, ("wallet", "email", "external_id"), strict=True))


def identifier_values(sent: Identifiers) -> list[tuple[IdentifierKind, str]]:
    """Return the identifiers that were sent, in the order in which they decide."""
    values = ((kind, getattr(sent, field)) for kind, field in _IDENTIFIER_FIELDS.items())
    return [(kind, value) for kind, value in values if value is not None]


def apply_event(
    contact: ContactState, sent: Identifiers, attributes: dict[str, Json], owners: Mapping[IdentifierKey, str] = {}
) -> ContactState:
    """Return the contact after an event of its own: attributes merged as far as they fit, missing identifiers added.

    `owners`: the contacts that identifiers in clear belong to; those of another contact stay there.
    """
    own, free = contact.identifiers, sent
    if owners:
        values = identifier_values(sent)
        left = {_IDENTIFIER_FIELDS[key[0]]: None for key in values if owners.get(key, contact.id) != contact.id}
        free = msgspec.structs.replace(sent, **left)
    identifiers = merge_identifiers(own, free)
    # An email that is sent with a matching wallet moves to the wallet's contact (docs/contract.md 4.5).
    if sent.email is not None and sent.wallet is not None:
        by_wallet = sent.wallet == own.wallet or owners.get((IdentifierKind.WALLET, sent.wallet)) == contact.id
        identifiers = msgspec.structs.replace(identifiers, email=sent.email if by_wallet else identifiers.email)
    merged = contact.attributes
    if attributes:
        merged = {**contact.attributes, **attributes}
        if exceeds_attribute_limits(merged):
            kept, _ = fit_attributes(contact.attributes, attributes)
            merged = {**contact.attributes, **kept}
        merged = as_stored(merged)
    return msgspec.structs.replace(contact, identifiers=identifiers, attributes=merged)


ConflictOutcome = Literal["moved", "left", "replaced", "kept"]


class Conflict(msgspec.Struct, frozen=True):
    """An identifier in conflict.

    If it belongs to another contact, it was `moved` from there or `left` there. Otherwise the contact's own identifier
    of that kind was `replaced` or `kept`.
    """

    key: IdentifierKey
    outcome: ConflictOutcome
    other_contact_id: str | None


class Resolution(msgspec.Struct, frozen=True):
    """The contact of an event, the identifiers that it gains, and the conflicts. `contact_id` None: a new contact."""

    contact_id: str | None
    gained: tuple[IdentifierKey, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


def resolve_identity(
    sent: tuple[IdentifierKey, ...],
    owners: Mapping[IdentifierKey, str],
    kinds: Mapping[str, frozenset[IdentifierKind]],
    hidden: Collection[IdentifierKey] = (),
) -> Resolution:
    """Return the contact of the identifiers `sent`, given the owner of each and the `kinds` that each contact has.

    `hidden`: the emails among them that their owner does not show: they were replaced, or came with a merge.
    """
    keys = sorted(sent)  # by kind, which is the order in which they decide
    match_kind, contact_id = next(((key[0], owners[key]) for key in keys if key in owners), (None, None))
    if contact_id is None:
        return Resolution(None, tuple(keys))
    gained: list[IdentifierKey] = []
    conflicts: list[Conflict] = []
    for key in keys:
        owner, has_kind = owners.get(key), key[0] in kinds[contact_id]
        if owner == contact_id:
            if key not in hidden:
                continue
            owner = None
        if key[0] is IdentifierKind.EMAIL and match_kind is IdentifierKind.WALLET:  # the email follows the wallet
            gained.append(key)
            if owner is not None:
                conflicts.append(Conflict(key, "moved", owner))
            if has_kind:
                conflicts.append(Conflict(key, "replaced", None))
        elif owner is not None:
            conflicts.append(Conflict(key, "left", owner))
        elif not has_kind:
            gained.append(key)
        elif key not in hidden:
            conflicts.append(Conflict(key, "kept", None))
    return Resolution(contact_id, tuple(gained), tuple(conflicts))


class ContactRecord(msgspec.Struct, frozen=True):
    """The values of a contact. `email` and `email_domain` are encrypted; `wallet_raw` is the wallet as it was sent."""

    wallet: str | None = None
    wallet_raw: str | None = None
    email: str | None = None
    email_domain: str | None = None
    external_id: str | None = None
    attributes: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    opted_out: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


class MergePlan(msgspec.Struct, frozen=True):
    """The effect of a merge on the kept contact.

    `gained`: values that the contact did not have. `hidden`: the kinds of identifier that both have; the one of the
    absorbed contact still resolves to the kept contact, but is not shown. `lost`: attributes with another value in the
    kept contact.
    """

    gained: ContactRecord
    hidden: tuple[str, ...]
    lost: dict[str, Json]


_IDENTIFIER_COLUMNS = {
    "walletAddress": ("wallet", "wallet_raw"),
    "email": ("email", "email_domain"),
    "externalId": ("external_id",),
}
_COLUMNS = [column for columns in _IDENTIFIER_COLUMNS.values() for column in columns]
_SETS = ("tags", "opted_out", "segments")


def plan_merge(keep: ContactRecord, absorbed: ContactRecord) -> MergePlan:
    """Return what `keep` gains from `absorbed`."""
    gained: dict[str, Any] = {}
    hidden = []
    for name, columns in _IDENTIFIER_COLUMNS.items():
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
    return MergePlan(ContactRecord(**gained, attributes=attributes), tuple(hidden), lost)


def identifier_names(contact: ContactRecord) -> tuple[str, ...]:
    """Return the names of the identifiers that a contact has."""
    return tuple(name for name, columns in _IDENTIFIER_COLUMNS.items() if getattr(contact, columns[0]) is not None)


def apply_merge(keep: ContactRecord, gained: ContactRecord) -> ContactRecord | None:
    """Return the contact with the gained values, or None if it would exceed the limits on attributes."""
    attributes = {**gained.attributes, **keep.attributes}
    if exceeds_attribute_limits(attributes):
        return None
    values: dict[str, Any] = {column: getattr(keep, column) or getattr(gained, column) for column in _COLUMNS}
    values |= {name: (*getattr(keep, name), *_without(getattr(gained, name), getattr(keep, name))) for name in _SETS}
    return ContactRecord(**values, attributes=attributes)


def merge_contacts(keep: ContactState, absorbed: ContactState) -> ContactState:
    """Return the kept contact after a merge. Topics are not merged here: the latest choice of both counts."""
    own, other = _as_record(keep), _as_record(absorbed)
    merged = apply_merge(own, plan_merge(own, other).gained)
    if merged is None:  # with the attributes that a draft would have set, the merge would have been refused
        return keep
    return _with_values(keep, merged)


def separate_contacts(keep: ContactState, absorbed: ContactState, kept_before: ContactState) -> ContactState:
    """Return the kept contact after a merge is undone; it keeps the topics it has now.

    `kept_before`: the kept contact as it was before the merge.
    """
    other = _as_record(absorbed)
    return _with_values(
        keep, undo_merge(_as_record(keep), other, plan_merge(_as_record(kept_before), other).gained).contact
    )


def _as_record(contact: ContactState) -> ContactRecord:
    return ContactRecord(
        contact.identifiers.wallet,
        None,
        contact.identifiers.email,
        None,
        contact.identifiers.external_id,
        contact.attributes,
        contact.tags,
        contact.opted_out,
        contact.segments,
    )


def _with_values(contact: ContactState, values: ContactRecord) -> ContactState:
    return msgspec.structs.replace(
        contact,
        identifiers=Identifiers(values.wallet, values.email, values.external_id),
        attributes=as_stored(values.attributes),
        tags=values.tags,
        opted_out=values.opted_out,
        segments=tuple(sorted(values.segments)),
    )


class UndoneMerge(msgspec.Struct, frozen=True):
    """A contact after a merge was undone. `kept_attributes`: gained attributes that stay because they changed since."""

    contact: ContactRecord
    kept_attributes: tuple[str, ...]


def undo_merge(keep: ContactRecord, absorbed: ContactRecord, gained: ContactRecord) -> UndoneMerge:
    """Return the contact without the gained values, except those that changed since the merge.

    It also loses an email of the absorbed contact that it got since, from an event with its wallet.
    """
    values: dict[str, Any] = {}
    for columns in _IDENTIFIER_COLUMNS.values():
        is_absorbed = getattr(keep, columns[0]) == getattr(absorbed, columns[0])
        values |= {column: None if is_absorbed else getattr(keep, column) for column in columns}
    removed = {name for name, value in gained.attributes.items() if json_equal(keep.attributes.get(name), value)}
    attributes = {name: value for name, value in keep.attributes.items() if name not in removed}
    kept_attributes = tuple(name for name in gained.attributes if name in attributes)
    values |= {name: _without(getattr(keep, name), getattr(gained, name)) for name in _SETS}
    return UndoneMerge(ContactRecord(**values, attributes=attributes), kept_attributes)


def attributes_since_merge(absorbed: dict[str, Json], now: dict[str, Json]) -> dict[str, Json]:
    """Return the attributes that were written to an absorbed contact after the merge."""
    return {name: value for name, value in now.items() if name not in absorbed or not json_equal(value, absorbed[name])}


def _without(texts: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text not in others)
