"""An explanation says why an automation started an entry for an event, or did not."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.language.strategies import contact_from
from workbench.language.event import Event, Identifiers
from workbench.language.explain import (
    AutomationState,
    MatchExplanation,
    ObservedEvent,
    StartedEntry,
    active_since,
    explain_simulated_event,
    explain_stored_event,
    was_active_at,
)
from workbench.language.facts import ContactHistory
from workbench.language.filter import Filter, Where, explain
from workbench.language.graph import read_graph
from workbench.language.live import ActivationChange
from workbench.language.simulate import SimulatedAutomation, SimulationInput, simulate
from workbench.language.trigger import Trigger

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
LARGE = Trigger(frozenset({"deposit"}), (Filter("amount", "eq", 100),))
ON = AutomationState()


def reasons(
    state: AutomationState = ON,
    name: str = "deposit",
    *,
    amount: object = 100,
    dry: bool = False,
    removed: bool = False,
    early: bool = False,
) -> tuple[str, ...]:
    event = ObservedEvent(LARGE.matches_event(name), {"amount": amount}, NOON, dry, removed, early)
    return explain_stored_event(LARGE, state, event, None).reasons


def test_every_reason_is_reported() -> None:
    assert reasons(name="trade", amount="100") == ("other_event", "filters")
    assert reasons(AutomationState(active=False)) == ("inactive",)
    assert reasons(AutomationState(active=False, archived=True)) == ("archived",)
    assert reasons(AutomationState(exists=False), amount=1) == ("not_there_yet", "filters")
    assert reasons(dry=True) == ("dry_run",)
    assert reasons(removed=True) == ("dropped",)
    assert reasons(early=True) == ("before_live",)
    assert reasons() == ("no_entry",)


@pytest.mark.parametrize("named", [True, False])
def test_the_whole_explanation_of_a_stored_event(named: bool) -> None:
    recent = Trigger(frozenset({"deposit"}), (Where("at | days_since == 0"),))
    event = ObservedEvent(named, {"at": (NOON - timedelta(hours=23)).isoformat()}, NOON)
    verdicts = explain(recent.filters, event.context, NOON)
    obstacles = ("no_entry",) if named else ("other_event",)
    assert explain_stored_event(recent, ON, event, None) == MatchExplanation(False, named, verdicts, obstacles)
    entry = StartedEntry("e", "ended", "reentry", "once")
    assert explain_stored_event(recent, ON, event, entry) == MatchExplanation(
        True, named, verdicts, ("reentry",), "once"
    )


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("completed", ()),
        (None, ()),
        ("no_published_version", ("unpublished",)),
        ("reentry", ("reentry",)),
        ("chain_reorg", ("dropped",)),
    ],
)
def test_an_existing_entry_is_explained_by_its_outcome(outcome: str | None, expected: tuple[str, ...]) -> None:
    entry = StartedEntry("e", "completed", outcome, "once")
    explanation = explain_stored_event(
        LARGE, AutomationState(active=False), ObservedEvent(True, {"amount": 1}, NOON), entry
    )
    assert (explanation.matched, explanation.reasons, explanation.cause) == (True, expected, "once")


def test_the_verdicts_have_the_actual_values() -> None:
    (verdict,) = explain_stored_event(LARGE, ON, ObservedEvent(True, {"amount": "100"}, NOON), None).verdicts
    assert (verdict.passed, verdict.present, verdict.actual) == (False, True, "100")


def test_the_activation_changes_decide_whether_it_was_active() -> None:
    hour = timedelta(hours=1)
    switches = [
        ActivationChange(NOON, "live"),
        ActivationChange(NOON + hour, "off"),
        ActivationChange(NOON + 2 * hour, "live"),
    ]
    times = [NOON - hour, NOON, NOON + 1.5 * hour, NOON + 3 * hour]
    assert [was_active_at(switches, at, now=True) for at in times] == [False, True, False, True]
    assert was_active_at([], NOON, now=False) is False
    assert was_active_at([], NOON, now=True) is True
    periods = [None, NOON, NOON, NOON + 2 * hour]
    assert [active_since(switches, at) for at in times] == periods
    again = [ActivationChange(NOON, "live"), ActivationChange(NOON + hour, "live")]
    assert active_since(again, NOON + 2 * hour) == NOON


def test_a_hypothetical_event_is_simulated_with_the_real_history() -> None:
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "add_tag", "data": {"tag": "vip"}}]
    edges = [{"source": "t", "target": "x"}]
    graph = read_graph({"nodes": nodes, "edges": edges, "settings": {"reentry": {"policy": "once"}}})
    assert not isinstance(graph, tuple)
    event = Event("deposit", Identifiers(external_id="u"), payload=b'{"amount": 100}')

    def explain_simulation(state: AutomationState, past: ContactHistory) -> tuple[bool, tuple[str, ...], str | None]:
        trace = simulate(SimulatedAutomation(LARGE, graph), event, contact_from(None), NOON, SimulationInput(past))
        explanation = explain_simulated_event(state, trace)
        assert (explanation.named, explanation.verdicts) == (True, trace.verdicts)
        return explanation.matched, explanation.reasons, explanation.cause

    assert explain_simulation(ON, ContactHistory()) == (True, (), None)
    assert explain_simulation(ON, ContactHistory(entered_at=NOON)) == (True, ("reentry",), "once")
    assert explain_simulation(AutomationState(active=False), ContactHistory(entered_at=NOON))[:2] == (
        False,
        ("inactive",),
    )
