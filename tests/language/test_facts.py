"""The facts of a decision: real time, later events, and the context that conditions and texts see."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from workbench.language.channel import InappMessage
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import EVENTS, ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.run import ContactUpdated, TagAdded, TagRemoved

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CONTACT = ContactState("c1", Identifiers("0xa", "ann@b.co"), {"plan": "pro"}, ("old",), ("vip",))
FACTS = Facts("paid", Identifiers(external_id="u1"), {"amount": 5}, CONTACT, at=NOW)
LATER = LaterEvent(NOW + SECOND, "bought", Identifiers("0xb"), {"amount": 7}, "v2")


@pytest.mark.parametrize(
    ("real_now", "expected"), [(None, NOW), (NOW - SECOND, NOW), (NOW, NOW), (NOW + SECOND, NOW + SECOND)]
)
def test_the_real_time_is_never_before_the_moment_of_the_decision(
    real_now: datetime | None, expected: datetime
) -> None:
    assert msgspec.structs.replace(FACTS, real_now=real_now).real_time(NOW) == expected


@pytest.mark.parametrize(
    ("at", "id_", "follows"),
    [
        (NOW, None, True),
        (NOW + SECOND, None, False),
        (NOW + SECOND, "v1", True),
        (NOW + SECOND, "v2", False),
        (NOW + 2 * SECOND, "v1", False),
    ],
)
def test_an_event_follows_a_moment_or_an_event_of_the_same_moment(at: datetime, id_: str | None, follows: bool) -> None:
    assert LATER.follows(at, id_) is follows


def test_an_event_without_an_id_follows_no_event_of_its_moment() -> None:
    assert not msgspec.structs.replace(LATER, id=None).follows(LATER.at, "A")


CONTEXT = {
    "event": "paid",
    "contactId": "c1",
    "walletAddress": "0xa",
    "email": "ann@b.co",
    "externalId": "u1",
    "amount": 5,
    "payload": {"amount": 5},
}


def test_the_context_has_the_event_its_payload_and_the_contact() -> None:
    context = dict(FACTS.context)
    contact = context.pop("contact")
    assert context == CONTEXT
    assert (contact["plan"], contact["tags"]) == ("pro", ["old"])
    assert FACTS.context is FACTS.context


def test_collected_events_are_a_list_in_the_context() -> None:
    facts = msgspec.structs.replace(FACTS, joined=(LATER, msgspec.structs.replace(LATER, payload={"event": "own"})))
    assert facts.context[EVENTS] == [
        {"event": "paid", "receivedAt": "2026-11-20T10:00:00Z", "amount": 5, "payload": {"amount": 5}},
        {"event": "bought", "receivedAt": "2026-11-20T10:00:01Z", "amount": 7, "payload": {"amount": 7}},
        {"event": "own", "receivedAt": "2026-11-20T10:00:01Z", "payload": {"event": "own"}},
    ]
    undated = msgspec.structs.replace(FACTS, at=None, joined=())
    assert undated.context[EVENTS] == [{"event": "paid", "receivedAt": None, "amount": 5, "payload": {"amount": 5}}]


def test_the_context_of_a_later_event_is_its_own_with_the_collected_ones() -> None:
    context = FACTS.context_of(LATER)
    contact = context.pop("contact")
    own = {"event": "bought", "contactId": "c1", "walletAddress": "0xb", "email": "ann@b.co", "amount": 7}
    assert context == own | {"payload": LATER.payload}
    assert contact["plan"] == "pro"
    collecting = msgspec.structs.replace(FACTS, joined=(LATER,))
    assert collecting.context_of(LATER) == context | {"contact": contact, EVENTS: collecting.context[EVENTS]}


def test_effects_change_the_facts_in_order_and_those_that_change_nothing_are_skipped() -> None:
    effects = (
        TagAdded("old"),
        TagAdded("new"),
        TagRemoved("absent"),
        TagRemoved("old"),
        ContactUpdated({"plan": "max", "size": 1}),
        InappMessage("m1", "m", "0xa", "Hi", "you"),
    )
    facts = msgspec.structs.replace(FACTS, real_now=NOW + SECOND, history=ContactHistory(messages_at=(NOW,)))
    changed = apply_effects(facts, effects, NOW)
    contact = msgspec.structs.replace(CONTACT, tags=("new",), attributes={"plan": "max", "size": 1})
    history = ContactHistory(messages_at=(NOW, NOW + SECOND))
    assert changed == msgspec.structs.replace(facts, contact=contact, history=history)
    assert apply_effects(facts, effects[:1], NOW) is facts
