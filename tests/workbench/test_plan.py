"""Differences between automations are written in words, and a publication is previewed."""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.installation import until
from tests.running import Running
from tests.text.test_round_trip import payloads
from tests.workbench.test_verbs import branching, new, thanks
from tests.workbench.test_verbs_and_settings import winback
from workbench import Automation, ConflictError, NotFoundError, Workbench
from workbench.changes import Changes, changes, marks
from workbench.language.codec import same_json


def lines(before: Automation, after: Automation) -> list[str]:
    return [str(change) for change in changes(before.to_json(), after.to_json()).items]


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (
            thanks(),
            thanks().add_tag("vip"),
            ["+ add_tag_vip: Add the tag “vip”", "→ send_inapp: leads to add_tag_vip, before: no step"],
        ),
        (
            thanks(),
            new().on("deposit").where("amountUsd", eq=100),
            [
                "- send_inapp: Send the in-app message “Thanks” if nothing is missing: “{{ amountUsd }} USD arrived”",
                "→ trigger: leads to no step, before: send_inapp",
            ],
        ),
        (
            new().on("a").send_email("Hi", "x"),
            new().on("a").send_email("Hello", "x"),
            ["~ send_email: subject: “Hello”, before: “Hi”"],
        ),
        (
            new().on("a").send_email("Hi", "x", locales={"de": {"subject": "Hallo", "body": "x"}}),
            new()
            .on("a")
            .send_email("Hi", "x", locales={"de": {"subject": "Servus", "body": "x"}})
            .default_locale("en"),
            ["~ settings: default texts in en", "~ send_email: subject in de: “Servus”, before: “Hallo”"],
        ),
        (
            new().on("a").delay("1d", node="d"),
            new().on("a").delay("36h", node="d"),
            ["~ d: waits: 1 day 12 hours, before: 1 day"],
        ),
        (
            new().on("a"),
            new().on("b", "a").where("x", eq=1),
            ["~ trigger: starts on b or a, before: a", "~ trigger: conditions: x is 1, before: nothing"],
        ),
        (
            new().on("a").add_tag("x"),
            new().on("a").add_tag("x", node="mark"),
            ["= mark: was add_tag_x; its counts start at 0 again"],
        ),
        (
            new().on("a").split({"x": 50, "y": 50}).add_tag("t"),
            new().on("a").split({"x": 50, "y": 50}, node="s").add_tag("t"),
            ["= s: was split; its counts start at 0 again; contacts are assigned to branches again"],
        ),
        (
            new().on("a").split({"x": 50, "y": 50}),
            new().on("a").split({"x": 10, "y": 90}),
            ["~ split: splits: 10 % “x” and 90 % “y”, before: 50 % “x” and 50 % “y”"],
        ),
        (
            thanks().reentry("once"),
            thanks().reentry(every="2d"),
            ["~ settings: once in 2 days per contact, before: once per contact"],
        ),
        (thanks(), thanks().goal("paid", where={"a": 1}), ["~ settings: until paid, where a is 1"]),
        (
            branching(),
            branching().with_extras({"edges.if_plan-true-add_tag_pro_customer.target": "add_tag_seen"}),
            ["→ if_plan: yes leads to add_tag_seen, before: add_tag_pro_customer"],
        ),
        (new("A").on("a"), new("B").on("a"), ["~ name: “B”, before: “A”"]),
        (
            new().on("a").step("x", {}, node="n"),
            new().on("a").add_tag("t", node="n"),
            ["~ n: another kind of step: Add the tag “t”, before: Run “x” with {}"],
        ),
    ],
)
def test_a_difference_is_described_by_its_meaning(before: Automation, after: Automation, texts: list[str]) -> None:
    assert lines(before, after) == texts
    assert lines(before, before) == []


def test_moved_steps_and_unread_keys_are_counted_separately() -> None:
    moved = changes(thanks().to_json(), thanks().with_extras({"positions": {"send_inapp": [5, 5]}}).to_json())
    assert (moved.items, moved.lines()) == ((), ["  1 step moved on the canvas"])
    keys = changes(thanks().to_json(), thanks().with_extras({"graph.viewport": {"zoom": 2}}).to_json())
    assert (keys.items, keys.unread_keys, bool(keys)) == ((), True, True)


def test_the_order_of_keys_is_ignored() -> None:
    def reverse_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reverse_keys(value[key]) for key in reversed(value)}
        return [reverse_keys(item) for item in value] if isinstance(value, list) else value

    payload = winback().reentry("once").where("a", eq=1).to_json()
    assert changes(payload, reverse_keys(payload)) == Changes()


def test_an_equal_step_with_other_edges_is_not_a_renamed_step() -> None:
    before = new().on("a").add_tag("x", node="first").add_tag("x", node="second")
    after = new().on("a").add_tag("x", node="second").add_tag("x", node="third")
    assert "was" not in " ".join(lines(before, after))


def test_differing_steps_are_marked_on_the_graph() -> None:
    differences = changes(winback().to_json(), winback().add_tag("more").to_json())
    assert marks(differences) == {"add_tag_more": "added"}


@settings(max_examples=40, deadline=None)
@given(payloads(), payloads())
def test_automations_differ_exactly_when_their_json_differs(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert changes(before, before) == Changes()
    assert bool(changes(before, after)) != same_json(before, after)
    assert changes(None, after).lines() or not after["graph"]["nodes"]


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_a_plan_compares_with_the_live_version_and_counts_its_entries(wb: Workbench) -> None:
    first = wb.automation("planned").on("planned:event").delay(days=1).add_tag("a")
    assert "new, nothing is published yet" in repr(first.plan())
    assert "+ delay_1_day: Wait 1 day" in repr(first.plan())
    first = first.publish()
    wb.events.send("planned:event", wallet_address="0xAbCd000000000000000000000000000000004321")
    until(lambda: len(first.entries(state="waiting")) == 1, "it waits")
    assert not first.plan()
    second = first.add_tag("b")
    plan = second.plan()
    assert [str(change) for change in plan.changes.items] == [
        "+ add_tag_b: Add the tag “b”",
        "→ add_tag_a: leads to add_tag_b, before: no step",
    ]
    assert "planned: 2 differences from version 1 (" in repr(plan)
    assert "finish on version 1" in repr(plan)
    page = plan._repr_html_()
    assert "data:image/svg+xml" in page
    assert "<svg" not in page
    second = second.publish()
    assert not second.plan()
    assert "- add_tag_b" not in repr(second.plan(against=1))
    assert "+ add_tag_b: Add the tag “b”" in repr(second.plan(against=1))
    with pytest.raises(NotFoundError, match="version not found: 9"):
        second.plan(against=9)


def test_a_plan_names_a_conflicting_change_and_publishing_is_refused(wb: Workbench) -> None:
    mine = wb.automation("stale plan").on("a").add_tag("x").publish()
    wb.automation("stale plan").add_tag("theirs").publish()
    assert "publishing is refused until you open it again: it was changed in the meantime (publish by " in repr(
        mine.plan()
    )
    with pytest.raises(ConflictError, match="someone else changed"):
        mine.add_tag("mine").publish()
