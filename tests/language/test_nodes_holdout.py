"""A holdout is constant, has the given size and no effects, and is the same in engine, simulation and backtest."""

from datetime import UTC, datetime

import pytest

from workbench.language.advance import advance
from workbench.language.check import check
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.facts import Facts
from workbench.language.graph import Graph, read_graph
from workbench.language.nodes import HOLDOUT_NODE_ID, bucket
from workbench.language.run import Run, State, Step
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.trigger import Trigger

NOW = datetime(2026, 11, 22, tzinfo=UTC)
NODES = [{"id": "t", "type": "app_event"}, {"id": "g", "type": "add_tag", "data": {"tag": "seen"}}]


def graph(**settings: object) -> Graph:
    parsed = read_graph({"nodes": NODES, "edges": [{"source": "t", "target": "g"}], "settings": settings})
    assert isinstance(parsed, Graph)
    return parsed


def event() -> Event:
    parsed = read_event(b'{"event": "paid", "contact": {"externalId": "u"}}', 0)
    assert isinstance(parsed, Event)
    return parsed


def outcome(contact_id: str, holdout: int) -> str | None:
    run = Run("e", "a", State.RUNNING, attempt=1)
    return advance(
        graph(holdout=holdout), run, Facts("paid", Identifiers(), {}, ContactState(contact_id)), NOW
    ).run.outcome


def test_the_lowest_buckets_are_held_out_also_when_the_holdout_grows() -> None:
    contacts = [str(number) for number in range(1_000)]
    held_out = {contact_id for contact_id in contacts if outcome(contact_id, 10) == "holdout"}
    assert held_out == {contact_id for contact_id in contacts if bucket("a", HOLDOUT_NODE_ID, contact_id) < 10}
    assert 70 < len(held_out) < 130
    assert held_out < {contact_id for contact_id in contacts if outcome(contact_id, 20) == "holdout"}


def test_a_held_out_entry_sends_nothing_and_counts_as_entered() -> None:
    contact = next(str(number) for number in range(100) if bucket("a", HOLDOUT_NODE_ID, str(number)) < 50)
    trace = simulate(SimulatedAutomation(Trigger(), graph(holdout=50), "a"), event(), ContactState(contact), NOW)
    assert (trace.state, trace.outcome, trace.tags) == (State.COMPLETED, "holdout", ())
    assert [(step.node_id, step.outcome) for step in trace.steps] == [("t", "held_out")]
    run = Run("e", "a", State.RUNNING, attempt=1)
    decision = advance(graph(holdout=50), run, Facts("paid", Identifiers(), {}, ContactState(contact)), NOW)
    step = Step("t", "app_event", NOW, "held_out", detail={"share": bucket("a", HOLDOUT_NODE_ID, contact)})
    assert decision == Decision(Run("e", "a", State.COMPLETED, "t", 1, 1, "holdout"), step)


def test_a_described_contact_without_an_id_is_not_held_out() -> None:
    automations = [SimulatedAutomation(Trigger(), graph(holdout=50), str(number)) for number in range(20)]
    invented = ContactState("00000000-0000-8000-8000-000000000000")
    assert {simulate(automation, event(), invented, NOW).outcome for automation in automations} == {"completed"}


def test_a_run_that_has_begun_is_not_held_out() -> None:
    facts = Facts("paid", Identifiers(), {}, ContactState("6"))
    begun = Run("e", "a", State.RUNNING, "g", step=1, attempt=1)
    assert advance(graph(holdout=50), begun, facts, NOW).run.outcome == "completed"


@pytest.mark.parametrize("wrong", [0, 51, True, 10.5, "10", {"percent": 10}])
def test_a_holdout_is_a_whole_percentage_up_to_half(wrong: object) -> None:
    (problem,) = graph(holdout=wrong).settings.problems
    assert str(problem) == "graph.settings.holdout: must be a whole percentage from 1 to 50"


def test_a_holdout_without_a_goal_is_a_warning() -> None:
    fields = [diagnostic.field for diagnostic in check(Trigger(), graph(holdout=10)) if diagnostic.field]
    assert "graph.settings.holdout" in fields
    compared = check(Trigger(), graph(holdout=10, goal={"event": "bought"}))
    assert "graph.settings.holdout" not in [diagnostic.field for diagnostic in compared]


def test_a_pause_keeps_the_node_and_uses_up_no_attempt() -> None:
    run = Run("e", "a", State.RUNNING, "g", step=1, attempt=2, since=NOW)
    facts = Facts("paid", Identifiers(), {}, ContactState("c"), paused=True)
    assert advance(graph(), run, facts, NOW).run == Run("e", "a", State.PAUSED, "g", step=1, attempt=1, since=NOW)
    stopped = Facts("paid", Identifiers(), {}, ContactState("c"), cancelled="automation_inactive", paused=True)
    assert advance(graph(), run, stopped, NOW).run.state is State.CANCELLED


def test_a_holdout_applies_after_attempts_without_an_outcome() -> None:
    spent = Run("e", "a", State.RUNNING, attempt=20)
    contacts = [str(number) for number in range(100)]
    ends = {
        contact_id: advance(
            graph(holdout=50), spent, Facts("paid", Identifiers(), {}, ContactState(contact_id)), NOW
        ).run.outcome
        for contact_id in contacts
    }
    assert ends == {
        contact_id: outcome(contact_id, 50) if bucket("a", HOLDOUT_NODE_ID, contact_id) < 50 else "attempts_exhausted"
        for contact_id in contacts
    }
