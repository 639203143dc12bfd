"""`resolve_contacts` gives a batch of events the contacts and writes that they would have one by one."""

from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.ingest.identity import (
    AttributeChange,
    ContactIdentifiers,
    ContactPlan,
    IdentifierChange,
    recognise,
    resolve_contacts,
)
from api.ingest.parse import IdentifiedEvent
from api.store.events import Owner
from workbench.language.codec import Json
from workbench.language.contact import Conflict, IdentifierKey, IdentifierKind
from workbench.language.event import Event, Identifiers

ORG_ID = 1
wallets = st.sampled_from([None, None, "w1", "w2", "w3"])
emails = st.sampled_from([None, None, "a@example.com", "b@example.com", "c@example.com"])
external_ids = st.sampled_from([None, None, "u1", "u2", "u3"])
sent = st.tuples(wallets, emails, external_ids).filter(any)
attributes = st.dictionaries(st.sampled_from(["plan", "tier"]), st.integers(0, 2), max_size=2)


class Contact(msgspec.Struct):
    identifiers: Identifiers = Identifiers()
    attributes: dict[str, Json] = {}
    events: list[str] = []


class Contacts:
    """Contacts in memory: what the database has after the plans of some batches."""

    def __init__(self) -> None:
        self.by_id: dict[str, Contact] = {}
        self.owner_of: dict[IdentifierKey, str] = {}
        self.conflicts: list[tuple[str, IdentifierKey, str]] = []
        self._numbers = count()

    def store(self, events: list[IdentifiedEvent]) -> None:
        owners = [self._owner(position, event.keys[0], event) for position, event in enumerate(events)]
        leading = [owner for owner in owners if owner is not None]
        recognised = recognise(events, leading)
        unknown = [event for event, owner in zip(events, recognised, strict=True) if owner is None]
        locked = {
            (ORG_ID, key): owner for event in unknown for key in event.keys if (owner := self._owner(0, key, event))
        }
        before = msgspec.json.encode([recognised, list(locked.values())])
        new_ids = [f"contact {next(self._numbers)}" for _ in unknown]
        plan = resolve_contacts(events, recognised, locked, new_ids)
        assert msgspec.json.encode([recognised, list(locked.values())]) == before
        assert plan == resolve_contacts(events, recognised, locked, new_ids)
        self._apply(events, plan)

    def _owner(self, position: int, key: IdentifierKey, event: IdentifiedEvent) -> Owner | None:
        contact_id = self.owner_of.get(key)
        if contact_id is None:
            return None
        contact = self.by_id[contact_id]
        own = contact.identifiers
        has_attributes = contact.attributes.items() >= event.body.attributes.items()
        return Owner(position, contact_id, own.wallet, own.email, own.external_id, has_attributes)

    def _apply(self, events: list[IdentifiedEvent], plan: ContactPlan) -> None:
        for _, contact_id in plan.created:
            self.by_id[contact_id] = Contact()
        for _, contact_id in plan.lost_email:
            self._change(contact_id, email=None)
        for (_, contact_id), gained in (plan.created | plan.gained).items():
            names = ("wallet", "email", "external_id")
            self._change(contact_id, **{name: value for name in names if (value := getattr(gained, name)) is not None})
        self.owner_of |= {key: contact_id for (_, key), contact_id in plan.owned.items()}
        for (_, contact_id), merged in plan.attributes.items():
            self.by_id[contact_id].attributes |= merged
        for event, contact_id in zip(events, plan.contact_ids, strict=True):
            self.by_id[contact_id].events.append(event.event_id)
        self.conflicts += [(event.event_id, conflict.key, conflict.outcome) for event, _, conflict in plan.conflicts]

    def _change(self, contact_id: str, **identifiers: str | None) -> None:
        contact = self.by_id[contact_id]
        contact.identifiers = msgspec.structs.replace(contact.identifiers, **identifiers)

    def by_events(self) -> dict[tuple[str, ...], Contact]:
        return {tuple(contact.events): contact for contact in self.by_id.values()}


@given(st.lists(st.tuples(sent, attributes), max_size=12), st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_batches_give_the_contacts_of_single_events(
    rows: list[tuple[tuple[str | None, str | None, str | None], dict[str, Json]]], sizes: list[int]
) -> None:
    events = [parsed(str(number), *row) for number, row in enumerate(rows)]
    one_by_one, batches = Contacts(), Contacts()
    for event in events:
        one_by_one.store([event])
    rest = events
    for size in sizes:
        batches.store(rest[:size])
        rest = rest[size:]
    assert batches.by_events() == one_by_one.by_events()
    assert batches.conflicts == one_by_one.conflicts


WALLET, EMAIL, EXTERNAL_ID = IdentifierKind
ANN = Owner(0, "ann", "w1", "a@x.co", None, has_attributes=False)
BOB = Owner(3, "bob", None, "b@x.co", "u2", has_attributes=True)


def test_the_whole_plan_of_a_batch() -> None:
    """An email moves from Bob to Ann and replaces hers; a new contact gains an email; Bob was recognised."""
    events = [
        parsed("1", ("w1", "b@x.co", None), {"plan": 1}),
        parsed("2", ("w9", None, "u9"), {"plan": 1}),
        parsed("3", ("w9", "c@x.co", None), {"plan": 2}),
        parsed("4", (None, None, "u2"), {}),
    ]
    locked = {(ORG_ID, (WALLET, "w1")): ANN, (ORG_ID, (EMAIL, "b@x.co")): BOB}
    ann, bob, new = (ORG_ID, "ann"), (ORG_ID, "bob"), (ORG_ID, "new")
    created = ContactIdentifiers("w9", "c@x.co", "u9", "w9", "x.co")
    moved = (EMAIL, "b@x.co")
    assert resolve_contacts(events, [None, None, None, BOB], locked, ["new", "unused", "unused"]) == ContactPlan(
        contact_ids=["ann", "new", "new", "bob"],
        identifiers={
            "ann": ContactIdentifiers("w1", "b@x.co"),
            "bob": ContactIdentifiers(external_id="u2"),
            "new": created,
        },
        created={new: created},
        gained={ann: ContactIdentifiers(email="b@x.co", email_domain="x.co")},
        lost_email={bob},
        owned={
            (ORG_ID, moved): "ann",
            (ORG_ID, (WALLET, "w9")): "new",
            (ORG_ID, (EXTERNAL_ID, "u9")): "new",
            (ORG_ID, (EMAIL, "c@x.co")): "new",
        },
        attributes={ann: {"plan": 1}, new: {"plan": 2}},
        conflicts=[
            (events[0], "ann", Conflict(moved, "moved", "bob")),
            (events[0], "ann", Conflict(moved, "replaced", None)),
        ],
        creators={new: events[1]},
        identifier_changes=[
            IdentifierChange(bob, 0, events[0], "email", "b@x.co", None),
            IdentifierChange(ann, 0, events[0], "email", "a@x.co", "b@x.co"),
            IdentifierChange(new, 2, events[2], "email", None, "c@x.co"),
        ],
        attribute_changes=[
            AttributeChange(ann, 0, events[0], {"plan": 1}, {}),
            AttributeChange(new, 1, events[1], {"plan": 1}, {}),
            AttributeChange(new, 2, events[2], {"plan": 2}, {"plan": 1}),
        ],
    )


def test_an_email_that_the_contact_had_before_is_stored_again() -> None:
    event = parsed("1", ("w1", "b@x.co", None), {})
    locked = {(ORG_ID, (WALLET, "w1")): ANN, (ORG_ID, (EMAIL, "b@x.co")): ANN}
    plan = resolve_contacts([event], [None], locked, ["unused"])
    assert plan.gained == {(ORG_ID, "ann"): ContactIdentifiers(email="b@x.co", email_domain="x.co")}
    assert plan.conflicts == [(event, "ann", Conflict((EMAIL, "b@x.co"), "replaced", None))]


@pytest.mark.parametrize(
    ("sent", "is_recognised"),
    [
        (("w1", None, None), True),
        (("w1", "a@x.co", None), True),
        (("w2", None, None), False),
        (("w1", "b@x.co", None), False),
        (("w1", None, "u2"), False),
    ],
)
def test_an_owner_is_recognised_by_all_identifiers_of_the_event(
    sent: tuple[str | None, str | None, str | None], is_recognised: bool
) -> None:
    assert recognise([parsed("1", sent, {})], [ANN]) == [ANN if is_recognised else None]


@pytest.mark.parametrize("external_id", [None, "u2"])
def test_an_owner_is_recognised_with_or_without_its_external_id(external_id: str | None) -> None:
    bob = Owner(0, "bob", None, "b@x.co", "u2", has_attributes=True)
    assert recognise([parsed("1", (None, "b@x.co", external_id), {})], [bob]) == [bob]


def test_a_contact_keeps_its_other_identifiers_when_it_gains_one() -> None:
    plan = resolve_contacts(
        [parsed("1", ("w7", None, "u2"), {})], [None], {(ORG_ID, (EXTERNAL_ID, "u2")): BOB}, ["new"]
    )
    assert plan.identifiers == {"bob": ContactIdentifiers("w7", "b@x.co", "u2")}


@pytest.mark.parametrize(
    ("identifiers", "kinds"),
    [
        (ContactIdentifiers(), set()),
        (ContactIdentifiers("w1"), {WALLET}),
        (ContactIdentifiers(email="a@x.co"), {EMAIL}),
        (ContactIdentifiers(external_id="u1"), {EXTERNAL_ID}),
        (ContactIdentifiers("w1", "a@x.co", "u1"), {WALLET, EMAIL, EXTERNAL_ID}),
    ],
)
def test_the_kinds_of_identifiers_that_a_contact_has(identifiers: ContactIdentifiers, kinds: set[str]) -> None:
    assert identifiers.kinds() == kinds


def test_the_text_of_changed_attributes_is_that_of_the_event_if_all_have_changed() -> None:
    event = parsed("1", ("w1", None, None), {"plan": 1, "tier": 2})
    event.attributes = '{"plan": 1, "tier": 2}'
    change = AttributeChange((ORG_ID, "ann"), 0, event, event.body.attributes, {})
    assert change.text == '{"plan": 1, "tier": 2}'
    assert msgspec.structs.replace(change, attributes={"plan": 1}).text == '{"plan":1}'


def parsed(
    event_id: str, sent: tuple[str | None, str | None, str | None], attributes: dict[str, Json]
) -> IdentifiedEvent:
    wallet, email, _ = sent
    keys = tuple((kind, value) for kind, value in zip(IdentifierKind, sent, strict=True) if value is not None)
    body = Event("deposit", Identifiers(*sent, wallet), attributes)
    return IdentifiedEvent(org_id=ORG_ID, body=body, event_id=event_id, keys=keys, emails=(email,) if email else ())
