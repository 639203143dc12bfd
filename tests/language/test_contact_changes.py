"""A change in the history of a contact, applied and taken back, with the whole contact."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from workbench.language.contact import ContactState, ValueChange, apply_change, contact_before
from workbench.language.event import Identifiers

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
CONTACT = ContactState(
    "c1", Identifiers("0xa", "ann@b.co", "u1"), {"plan": "pro"}, ("a", "b"), ("s",), ("email",), ("news",)
)


def changed(**changes: Any) -> ContactState:
    return msgspec.structs.replace(CONTACT, **changes)


@pytest.mark.parametrize(
    ("field", "old", "new", "after"),
    [
        ("attributes.plan", "pro", "max", changed(attributes={"plan": "max"})),
        ("attributes.size", UNSET, 1, changed(attributes={"plan": "pro", "size": 1})),
        ("attributes.plan", "pro", UNSET, changed(attributes={})),
        ("tags", ["a"], ["c"], changed(tags=("b", "c"))),
        ("tags", ["a", "b"], ["b", "a"], CONTACT),
        ("tags", UNSET, ["a", "d"], changed(tags=("a", "b", "d"))),
        ("tags", ["b"], UNSET, changed(tags=("a",))),
        ("optedOut", [], ["inapp"], changed(opted_out=("email", "inapp"))),
        ("optedOut", ["email"], [], changed(opted_out=())),
        ("segments.vip", False, True, changed(segments=("s", "vip"))),
        ("segments.big", False, True, changed(segments=("big", "s"))),
        ("segments.s", True, False, changed(segments=())),
        ("topics.news", False, True, changed(declined=())),
        ("topics.deals", True, False, changed(declined=("deals", "news"))),
        ("email", "ann@b.co", "bo@b.co", changed(identifiers=Identifiers("0xa", "bo@b.co", "u1"))),
        ("walletAddress", "0xa", UNSET, changed(identifiers=Identifiers(None, "ann@b.co", "u1"))),
        ("externalId", "u1", "u2", changed(identifiers=Identifiers("0xa", "ann@b.co", "u2"))),
        ("suppressed", False, True, CONTACT),
        ("mergedInto", UNSET, "c2", CONTACT),
    ],
)
def test_a_change_is_applied(field: str, old: Any, new: Any, after: ContactState) -> None:
    assert apply_change(CONTACT, ValueChange(NOW, field, old, new)) == after


def test_attributes_are_in_stored_order_after_a_new_one() -> None:
    after = apply_change(CONTACT, ValueChange(NOW, "attributes.age", UNSET, 3))
    assert [*after.attributes] == ["age", "plan"]


def test_the_contact_before_its_changes_has_the_first_old_values() -> None:
    changes = [
        ValueChange(NOW, "attributes.plan", "free", "max"),
        ValueChange(NOW, "attributes.plan", "max", "pro"),
        ValueChange(NOW, "attributes.size", UNSET, 1),
        ValueChange(NOW, "tags", ["z"], ["a", "b"]),
        ValueChange(NOW, "optedOut", UNSET, ["email"]),
        ValueChange(NOW, "segments.s", False, True),
        ValueChange(NOW, "topics.news", True, False),
        ValueChange(NOW, "externalId", UNSET, "u1"),
        ValueChange(NOW, "suppressed", False, True),
    ]
    now = changed(attributes={"plan": "pro", "size": 1})
    assert contact_before(now, changes) == ContactState("c1", Identifiers("0xa", "ann@b.co"), {"plan": "free"}, ("z",))
