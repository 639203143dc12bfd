"""Which steps of two versions wait in the same way, and what an entry does next that is moved between them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given

from tests.language.strategies import nodes
from workbench.language.actions import InvalidAction
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import Facts
from workbench.language.moves import Move, Prediction, VersionedGraph, check_mapping, predict, steps_before
from workbench.language.problem import Problem
from workbench.language.run import Run, State

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
INAPP = {"title": "Hi", "body": "there", "recipientMode": "triggering_profile"}
EMAIL = {"subject": "Hi", "body": "there"}
QUIET = {"quietHours": {"from": "22:00", "to": "08:00"}}
ZONE = {"timezone": "Europe/Zurich"}


def version(number: int, kind: str, data: dict[str, Any], **settings: Any) -> VersionedGraph:
    """Return a version with one step between a trigger and a tag."""
    steps = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "step", "type": kind, "data": data, "position": {"x": number, "y": 0}},
        {"id": "tag", "type": "add_tag", "data": {"tag": "x"}},
    ]
    edges = [{"source": "t", "target": "step"}, {"source": "step", "target": "tag"}]
    return VersionedGraph(number, {"nodes": steps, "edges": edges, "settings": settings})


@pytest.mark.parametrize(
    ("kind", "before", "after", "settings", "is_safe"),
    [
        ("delay", {"seconds": 60}, {"seconds": 60}, (QUIET, ZONE), True),
        ("delay", {"seconds": 60}, {"seconds": 61}, ({}, {}), False),
        ("delay", {"seconds": 60}, {"seconds": 60, "label": "x"}, ({}, {}), False),
        ("send_inapp", INAPP, INAPP | {"body": "you"}, (QUIET, QUIET), True),
        ("send_inapp", INAPP, INAPP | {"locales": {"de": {"title": "Hallo", "body": "du"}}}, (QUIET, QUIET), True),
        ("send_inapp", INAPP, INAPP | {"onMissing": "skip"}, (QUIET, QUIET), False),
        ("send_inapp", INAPP, INAPP, (QUIET, {}), False),
        ("send_inapp", INAPP, INAPP, (QUIET, QUIET | ZONE), False),
        ("send_inapp", INAPP, INAPP | {"body": "{{ x"}, (QUIET, QUIET), False),
        ("send_email", EMAIL, EMAIL | {"subject": "Hello"}, (QUIET, QUIET), True),
        ("send_webhook", {"url": "https://a.co"}, {"url": "https://a.co"}, (QUIET, ZONE), True),
        ("send_webhook", {"url": "https://a.co"}, {"url": "https://b.co"}, ({}, {}), False),
        ("wait_until", {"time": "09:00"}, {"time": "09:00"}, (QUIET, {}), True),
        ("wait_until", {"time": "09:00"}, {"time": "09:00"}, (ZONE, {}), False),
        ("wait_until", {"attribute": "due"}, {"attribute": "due"}, (ZONE, {}), False),
        ("collect", {"until": "09:00"}, {"until": "09:00"}, (ZONE, {}), False),
        ("collect", {"seconds": 60}, {"seconds": 60}, (ZONE, {}), True),
        ("collect", {"seconds": 60}, {"seconds": 60, "max": 5}, ({}, {}), False),
        (
            "wait_for_event",
            {"event": "a", "timeoutSeconds": 60, "filters": []},
            {"event": "a", "timeoutSeconds": 60, "filters": [], "where": "x > 1"},
            ({}, {}),
            False,
        ),
    ],
)
def test_a_step_is_safe_if_it_waits_in_the_same_way(
    kind: str, before: dict[str, Any], after: dict[str, Any], settings: tuple[dict[str, Any], ...], is_safe: bool
) -> None:
    start, to = version(1, kind, before, **settings[0]), version(2, kind, after, **settings[1])
    target = Move(to, "safe", "version 2").target(start, "step")
    assert target == (to.graph.by_id["step"] if is_safe else "the step 'step' differs in version 2")


@given(node=nodes)
def test_every_kind_of_step_is_safe_if_nothing_changes(node: dict[str, Any]) -> None:
    kind, data = node["type"], node["data"]
    start, to = version(1, kind, data), version(2, kind, data)
    assume(not isinstance(to.graph.by_id["step"].action, InvalidAction))  # a text may include an unknown snippet
    assert Move(to, "safe", "version 2").target(start, "step") == to.graph.by_id["step"]


def test_a_step_with_a_clock_is_not_safe_if_the_time_zone_of_the_organization_changes() -> None:
    start, to = (version(number, "wait_until", {"time": "09:00"}) for number in (1, 2))
    pinned = VersionedGraph(2, to.json | {"timezone": "Europe/Zurich"})
    assert Move(pinned, "safe", "version 2").target(start, "step") == "the step 'step' differs in version 2"
    alike = VersionedGraph(1, start.json | {"settings": ZONE})  # the same zone, chosen in another place
    assert Move(pinned, "safe", "version 2").target(alike, "step") == pinned.graph.by_id["step"]


def test_a_step_of_another_kind_or_that_is_gone_is_not_safe() -> None:
    start, to = version(1, "add_tag", {"tag": "x"}), version(2, "remove_tag", {"tag": "x"})
    assert Move(to, "safe", "version 2").target(start, "step") == "the step 'step' differs in version 2"
    gone = VersionedGraph(2, {"nodes": [{"id": "t", "type": "app_event", "data": {}}], "edges": []})
    assert Move(gone, "safe", "version 2").target(start, "step") == "version 2 has no step 'step'"
    assert Move(to, {"other": "tag"}, "version 2").target(start, "step") == "the mapping has no step for 'step'"
    assert Move(to, {"step": "nope"}, "version 2").target(start, "step") == "version 2 has no step 'nope'"
    assert Move(to, {"step": "tag"}, "version 2").target(start, "step") == to.graph.by_id["tag"]


def test_a_mapping_is_checked_before_anything_is_published() -> None:
    start, to = version(1, "delay", {"seconds": 60}), version(2, "delay", {"seconds": 60})
    assert check_mapping({"step": "tag"}, to.graph, [start.graph], "move") == ()
    assert check_mapping("safe", to.graph, [], "move") == ()
    assert check_mapping({"nope": "tag", "step": "t", "tag": "nope"}, to.graph, [start.graph], "move") == (
        Problem("move.nope", "no earlier version with entries has this step"),
        Problem("move.step", "'t' is the trigger, at which no entry can wait"),
        Problem("move.tag", "the new version has no step 'nope'"),
    )


def test_no_entry_is_moved_to_the_first_node_whatever_its_kind() -> None:
    graph = VersionedGraph(2, {"nodes": [{"id": "a", "type": "exit"}], "edges": []}).graph
    message = "'a' is the trigger, at which no entry can wait"
    assert check_mapping({"a": "a"}, graph, [graph], "move") == (Problem("move.a", message),)


def waiting(since: timedelta) -> Run:
    return Run("e", "a", State.RUNNING, "step", 1, 1, since=NOW - since, event_id="v")


def facts(**contact: Any) -> Facts:
    return Facts("deposit", Identifiers(), {}, ContactState("c", Identifiers(**contact)), at=NOW - timedelta(days=9))


def test_the_prediction_is_the_end_of_the_wait_and_the_next_step() -> None:
    graph = version(2, "delay", {"seconds": 3_600}).graph
    run, end = waiting(timedelta(minutes=20)), NOW + timedelta(minutes=40)
    moved = run.to(State.WAITING, attempt=0, due_at=end)
    assert predict(graph, run, facts(), NOW) == Prediction(moved, end, "waited", next_node_id="tag")
    over = waiting(timedelta(hours=2))
    assert predict(graph, over, facts(), NOW) == Prediction(over, NOW, "waited", next_node_id="tag")


@pytest.mark.parametrize(("kind", "outcome", "ends"), [("delay", "waited", "completed"), ("exit", "exited", "exit")])
def test_the_prediction_says_how_the_entry_ends(kind: str, outcome: str, ends: str) -> None:
    steps = [{"id": "t", "type": "app_event"}, {"id": "step", "type": kind, "data": {"seconds": 60}}]
    graph = VersionedGraph(2, {"nodes": steps, "edges": [{"source": "t", "target": "step"}]}).graph
    run = waiting(timedelta(hours=1))
    assert predict(graph, run, facts(), NOW) == Prediction(run, NOW, outcome, ends=ends)


def test_a_wait_that_is_prolonged_when_it_ends_is_followed() -> None:
    quiet = version(2, "send_inapp", INAPP, quietHours={"from": "12:00", "to": "13:00"}).graph
    run = Run("e", "a", State.RUNNING, "step", 1, 1, event_id="v")
    noon, end = NOW, NOW + timedelta(hours=1)
    moved = run.to(State.WAITING, attempt=0, due_at=end, since=noon)
    known = facts(wallet="0x" + "a" * 40)
    assert predict(quiet, run, known, noon) == Prediction(moved, end, "sent", next_node_id="tag")


def test_a_move_is_refused_if_the_next_step_of_the_entry_would_fail() -> None:
    graph = version(2, "send_inapp", INAPP | {"title": "{{ nope.a.b }}"}).graph
    assert predict(graph, waiting(timedelta(hours=1)), facts(), NOW) == (
        "it would fail: no_wallet: neither the event nor the contact has a wallet"
    )
    cancelled = Facts("deposit", Identifiers(), {}, ContactState("c", Identifiers()), cancelled="contact_erased")
    assert predict(graph, waiting(timedelta(hours=1)), cancelled, NOW) == "it would fail: contact_erased"


def test_steps_are_counted_so_that_all_that_follow_are_within_the_loop_guard() -> None:
    move = Move(version(2, "delay", {"seconds": 60}), "safe", "version 2")
    assert [steps_before(move.to.graph, "step", steps) for steps in (0, 1, 9)] == [0, 1, 1]
    assert move.repeated_step("step", ["t", "step"]) == "step"
    assert move.repeated_step("tag", ["t", "step"]) is None
