"""Reentry rules, the loop guard and goals stop an entry before its node runs, and declare the facts they require."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from workbench.language.actions import (
    AddTag,
    Collect,
    Delay,
    SendEmail,
    SendInapp,
    SendWebhook,
    TriggerNode,
    WaitForEvent,
    WaitUntil,
)
from workbench.language.advance import LOOP_LIMIT, RequiredFacts, advance, decide_failure, required_facts
from workbench.language.channel import WEBHOOK, RetryPolicy
from workbench.language.contact import ContactState
from workbench.language.decision import Decision, Failure
from workbench.language.event import Identifiers
from workbench.language.facts import ContactHistory, Facts, LaterEvent
from workbench.language.filter import Filter, Where
from workbench.language.graph import AutomationSettings, Edge, FrequencyCap, Goal, Graph, Node, Reentry, ReentryPolicy
from workbench.language.run import Run, State, Step, delay_after

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
DAY = timedelta(days=1)
FACTS = Facts("paid", Identifiers(), {}, ContactState("c1"))
START = Run("e1", "a1").claimed()
TAG = AddTag("x")
HOOK = SendWebhook("https://a.co")


def graph(action: Any = TAG, **settings: Any) -> Graph:
    nodes = (Node("t", "app_event", TriggerNode()), Node("n", "kind", action))
    return Graph(nodes, (Edge("", "t", "n"),), AutomationSettings(**settings))


def facts_with(*arrivals: LaterEvent, **past: Any) -> Facts:
    return msgspec.structs.replace(FACTS, history=ContactHistory(**past), later_events=arrivals)


def is_admitted(policy: ReentryPolicy, days: int = 0, **past: Any) -> bool:
    decision = advance(graph(reentry=Reentry(policy, days)), START, facts_with(**past), NOW)
    return decision.run.state is State.RUNNING


@pytest.mark.parametrize(
    ("policy", "past", "may"),
    [
        ("always", {"entered_at": NOW, "running": True}, True),
        ("once", {}, True),
        ("once", {"entered_at": NOW - 999 * DAY}, False),
        ("once_per", {}, True),
        ("once_per", {"entered_at": NOW - 7 * DAY}, True),
        ("once_per", {"entered_at": NOW - 7 * DAY + DAY / 24, "running": False}, False),
        ("once_per", {"entered_at": NOW - 8 * DAY, "running": True}, True),
        ("not_while_running", {"entered_at": NOW}, True),
        ("not_while_running", {"entered_at": NOW - 99 * DAY, "running": True}, False),
    ],
)
def test_reentry_follows_the_policy(policy: ReentryPolicy, past: dict[str, Any], may: bool) -> None:
    assert is_admitted(policy, 7 if policy == "once_per" else 0, **past) is may


def test_a_refused_entry_has_no_step_and_a_cause() -> None:
    decision = advance(graph(reentry=Reentry("once")), START, facts_with(entered_at=NOW), NOW)
    step = Step("t", "app_event", NOW, "refused", detail={"cause": "once"})
    assert decision == Decision(Run("e1", "a1", State.CANCELLED, "t", 0, 1, "reentry"), step)


def test_a_running_entry_is_not_checked_for_reentry_again() -> None:
    running = Run("e1", "a1", State.RUNNING, "n", 1, 1)
    assert (
        advance(graph(reentry=Reentry("once")), running, facts_with(entered_at=NOW), NOW).run.state is State.COMPLETED
    )


def test_i12_an_automation_that_starts_itself_by_its_webhook_is_stopped() -> None:
    assert advance(graph(HOOK), START, facts_with(recent=LOOP_LIMIT - 1), NOW).run.state is State.RUNNING
    decision = advance(graph(HOOK), START, facts_with(recent=LOOP_LIMIT), NOW)
    step = Step("t", "app_event", NOW, "refused", detail={"cause": "loop_guard", "entries": 100})
    assert decision == Decision(Run("e1", "a1", State.CANCELLED, "t", 0, 1, "loop_guard"), step)


def test_the_loop_guard_applies_only_to_graphs_with_a_webhook() -> None:
    assert advance(graph(), START, facts_with(recent=10 * LOOP_LIMIT), NOW).run.state is State.RUNNING


GOAL = Goal("bought", (Filter("plan", "eq", "pro"), Filter("contact.id", "exists")))


def purchase(plan: str = "pro", event: str = "bought", event_id: str | None = "v1") -> LaterEvent:
    return LaterEvent(NOW, event, Identifiers(), {"plan": plan}, event_id)


@pytest.mark.parametrize("run", [START, Run("e1", "a1", State.RUNNING, "n", 1, 2, since=NOW)])
def test_the_goal_ends_an_entry_at_any_node(run: Run) -> None:
    decision = advance(graph(Delay(DAY), goal=GOAL), run, facts_with(purchase("free"), purchase()), NOW)
    node_id, kind = ("t", "app_event") if run.node_id is None else ("n", "kind")
    step = Step(node_id, kind, NOW, "goal", run.attempt, detail={"event": "bought", "eventId": "v1"})
    ended = msgspec.structs.replace(run, state=State.EXITED, outcome="goal", node_id=node_id, since=None)
    assert decision == Decision(ended, step)


def test_a_goal_is_judged_at_the_time_of_its_event() -> None:
    goal = Goal("bought", (Where("payload.plan | days_since == 1"),))
    of_day, next_day = (msgspec.structs.replace(purchase("2026-11-19"), at=NOW + days * DAY) for days in (0, 1))
    outcomes = [advance(graph(goal=goal), START, facts_with(event), NOW).run.outcome for event in (of_day, next_day)]
    assert outcomes == ["goal", None]


@pytest.mark.parametrize("arrival", [purchase("free"), purchase(event="sold")])
def test_another_event_is_not_the_goal(arrival: LaterEvent) -> None:
    assert advance(graph(goal=GOAL), START, facts_with(arrival), NOW).run.state is State.RUNNING


def test_an_event_that_is_both_goal_and_awaited_ends_the_entry() -> None:
    waiting = Run("e1", "a1", State.WAITING, "n", 1, 0, due_at=NOW + DAY, since=NOW - DAY).claimed()
    decision = advance(
        graph(WaitForEvent("bought", (), 2 * DAY), goal=Goal("bought")), waiting, facts_with(purchase()), NOW
    )
    assert (decision.run.state, decision.run.outcome) == (State.EXITED, "goal")


def test_a_simulated_event_has_no_id_in_the_step() -> None:
    decision = advance(graph(goal=Goal("bought")), START, facts_with(purchase(event_id=None)), NOW)
    assert decision.step is not None
    assert decision.step.detail == {"event": "bought"}


AT_N = Run("e1", "a1", State.RUNNING, "n", 1, 1)
WAITING = Run("e1", "a1", State.WAITING, "n", 1, 0, due_at=NOW, since=NOW)
AFTER_EVENT = msgspec.structs.replace(WAITING, since_id="v1")
CAP = FrequencyCap(3, DAY)


@pytest.mark.parametrize(
    ("shape", "run", "wanted"),
    [
        (None, START, RequiredFacts()),
        (graph(), START, RequiredFacts()),
        (graph(reentry=Reentry("once")), START, RequiredFacts(entries=True)),
        (graph(reentry=Reentry("once")), AT_N, RequiredFacts()),
        (graph(HOOK), START, RequiredFacts(recent=True)),
        (graph(HOOK), AT_N, RequiredFacts()),
        (graph(SendInapp("t", "b"), frequency_cap=CAP), START, RequiredFacts(messages=DAY)),
        (graph(SendEmail("s", "b"), frequency_cap=CAP), AT_N, RequiredFacts(messages=DAY, unsubscribed=True)),
        (graph(HOOK, frequency_cap=CAP), AT_N, RequiredFacts()),
        (graph(goal=GOAL), START, RequiredFacts(later_events=frozenset({"bought"}))),
        (graph(WaitForEvent("sold", (), DAY)), START, RequiredFacts()),
        (graph(WaitForEvent("sold", (), DAY)), WAITING, RequiredFacts(later_events=frozenset({"sold"}), since=NOW)),
        (
            graph(WaitForEvent("sold", (), DAY), goal=GOAL),
            WAITING,
            RequiredFacts(later_events=frozenset({"sold", "bought"})),
        ),
        (graph(Delay(DAY), goal=GOAL), WAITING, RequiredFacts(later_events=frozenset({"bought"}))),
        (graph(Delay(DAY)), WAITING, RequiredFacts(since=NOW)),
        (graph(Delay(DAY)), AFTER_EVENT, RequiredFacts(since=NOW, since_id="v1")),
        (graph(Delay(DAY), goal=GOAL), AFTER_EVENT, RequiredFacts(later_events=frozenset({"bought"}))),
        (graph(Delay(DAY)), msgspec.structs.replace(AFTER_EVENT, since=None), RequiredFacts()),
        (graph(Collect(DAY)), START, RequiredFacts(collecting=True)),
        (graph(Collect(DAY)), AT_N, RequiredFacts(collecting=True, joined=True)),
        (graph(SendInapp("t", "b", topic="news")), START, RequiredFacts(topics=frozenset({"news"}))),
        (graph(WaitUntil(date="contact.trial")), START, RequiredFacts(attributes=frozenset({"timezone", "trial"}))),
        (graph(), Run("e1", "a1", State.RUNNING, "gone", 1, 1), RequiredFacts()),
    ],
)
def test_only_facts_that_can_matter_are_required(shape: Graph | None, run: Run, wanted: RequiredFacts) -> None:
    assert required_facts(shape, run) == wanted


def test_a_failed_effect_replaces_the_decision_that_requested_it() -> None:
    decision = decide_failure(graph(HOOK), AT_N, Failure("http_500", "the receiver answered 500"), FACTS, NOW)
    delay = delay_after(WEBHOOK.delays_s, 1, "a1/")
    assert delay is not None
    error = "http_500: the receiver answered 500"
    step = Step("n", "kind", NOW, "failed", detail={"cause": "http_500", "error": "the receiver answered 500"})
    assert decision == Decision(Run("e1", "a1", State.RETRYING, "n", 1, 1, None, error, NOW + delay), step)


def test_a_permanent_failure_is_not_retried() -> None:
    decision = decide_failure(graph(HOOK), AT_N, Failure("gone", "410", permanent=True), FACTS, NOW)
    assert (decision.run.state, decision.run.outcome, decision.run.error) == (State.DEAD, "gone", "gone: 410")


@pytest.mark.parametrize(("retry_after", "delay"), [(timedelta(hours=2), timedelta(hours=2)), (30 * DAY, DAY)])
def test_retry_after_is_honoured_up_to_one_day(retry_after: timedelta, delay: timedelta) -> None:
    decision = decide_failure(graph(HOOK), AT_N, Failure("http_429", "too many", retry_after=retry_after), FACTS, NOW)
    assert decision.run.due_at == NOW + delay


@pytest.mark.parametrize(
    ("action", "most"), [(HOOK, 10), (SendEmail("s", "b"), 7), (SendInapp("t", "b"), 6), (AddTag("x"), 6)]
)
def test_each_channel_has_its_own_number_of_attempts(action: Any, most: int) -> None:
    run = msgspec.structs.replace(AT_N, attempt=most)
    assert decide_failure(graph(action), run, Failure("x", "y"), FACTS, NOW).run.state is State.DEAD
    assert decide_failure(graph(action), AT_N, Failure("x", "y"), FACTS, NOW).run.state is State.RETRYING
    spent = msgspec.structs.replace(run, attempt=most + 1)
    reason = "every attempt ended without an outcome"
    dead = msgspec.structs.replace(
        spent, state=State.DEAD, outcome="attempts_exhausted", error=f"attempts_exhausted: {reason}"
    )
    step = Step("n", "kind", NOW, "failed", most + 1, detail={"cause": "attempts_exhausted", "error": reason})
    assert advance(graph(action), spent, FACTS, NOW) == Decision(dead, step)


def test_no_schedule_means_one_attempt() -> None:
    once = msgspec.structs.replace(FACTS, retries=RetryPolicy(()))
    assert decide_failure(graph(HOOK), AT_N, Failure("x", "y"), once, NOW).run.state is State.DEAD
    assert advance(graph(HOOK), AT_N, once, NOW).run.state is State.COMPLETED
    second = msgspec.structs.replace(AT_N, attempt=2)
    assert advance(graph(HOOK), second, once, NOW).run.outcome == "attempts_exhausted"
