"""Simulations over days use a virtual clock, later events, goals and quiet hours."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from workbench.language.codec import decode, encode, normalize
from workbench.language.event import Event, read_event
from workbench.language.facts import ContactHistory
from workbench.language.filter import Where, explain
from workbench.language.graph import Graph, read_graph
from workbench.language.run import State
from workbench.language.simulate import (
    EARLIEST,
    LATEST,
    SIMULATED_ID,
    MissedEvent,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    in_locale,
    simulate,
    without_holdout,
)
from workbench.language.trigger import Trigger

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ANY = Trigger()


def event(name: str = "paid", **fields: Any) -> Event:
    parsed = read_event(encode({"event": name, "contact": {"walletAddress": evm_wallet("A")}} | fields), 0)
    assert isinstance(parsed, Event), parsed
    return parsed


def build_automation(*nodes: dict[str, Any], edges: str = "", settings: Any = None) -> SimulatedAutomation:
    """Return an automation with the nodes in a row behind a trigger, or with `edges` such as `a>b a:handle>b`."""
    ids = ["t", *(node["id"] for node in nodes)]
    written = edges.split() or [f"{source}>{target}" for source, target in pairwise(ids)]
    joined = []
    for edge in written:
        source, target = edge.split(">")
        name, _, handle = source.partition(":")
        joined.append({"source": name, "target": target, "sourceHandle": handle or None})
    value = {"nodes": [{"id": "t", "type": "app_event"}, *nodes], "edges": joined, "settings": settings}
    graph = read_graph(normalize(value))
    assert isinstance(graph, Graph), graph
    return SimulatedAutomation(ANY, graph)


def node(name: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "type": kind, "data": data}


DELAY = node("d", "delay", seconds=3 * 86_400)
WAIT = node("w", "wait_for_event", event="bought", timeoutSeconds=2 * 86_400)
YES, NO = node("yes", "add_tag", tag="yes"), node("no", "add_tag", tag="no")
MESSAGE = node("m", "send_inapp", title="Hi", body="{{ contact.plan | default('?') }}")
BRANCHED = build_automation(DELAY, WAIT, YES, NO, edges="t>d d>w w:matched>yes w:timeout>no")


def run_simulation(
    automation: SimulatedAutomation, *later: ScheduledEvent, now: datetime = NOW, **circumstances: Any
) -> Trace:
    return simulate(automation, event(), contact_from(None), now, SimulationInput(later=later, **circumstances))


def steps_of(trace: Trace) -> list[tuple[str, str, float]]:
    """Return node, outcome and days since the start for each step."""
    return [(step.node_id, step.outcome, (step.at - NOW) / DAY) for step in trace.steps]


def test_three_days_pass_at_once() -> None:
    assert steps_of(run_simulation(build_automation(DELAY, YES))) == [
        ("t", "entered", 0),
        ("d", "waiting", 0),
        ("d", "waited", 3),
        ("yes", "tagged", 3),
    ]


def test_a_wait_that_nothing_ends_times_out() -> None:
    trace = run_simulation(BRANCHED)
    assert steps_of(trace)[3:] == [("w", "waiting", 3), ("w", "timed_out", 5), ("no", "tagged", 5)]
    assert (trace.state, trace.tags) == (State.COMPLETED, ("no",))


def test_a_later_event_ends_a_wait_at_its_time() -> None:
    trace = run_simulation(BRANCHED, ScheduledEvent(4 * DAY, event("bought")))
    assert steps_of(trace)[3:] == [("w", "waiting", 3), ("w", "matched", 4), ("yes", "tagged", 4)]


@pytest.mark.parametrize(
    ("after", "tag"),
    [(DAY, "no"), (3 * DAY, "no"), (3 * DAY + HOUR, "yes"), (5 * DAY, "yes"), (5 * DAY + HOUR, "no")],
    ids=["before the wait", "as it begins", "after it began", "as it ends", "after it ended"],
)
def test_only_events_within_the_wait_count(after: timedelta, tag: str) -> None:
    assert run_simulation(BRANCHED, ScheduledEvent(after, event("bought"))).tags == (tag,)


@pytest.mark.parametrize("event_id", ["", "0199a000-0000-7000-8000-000000000000"])
def test_a_later_event_of_the_same_moment_ends_a_wait(event_id: str) -> None:
    automation = build_automation(WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no")
    trace = run_simulation(automation, ScheduledEvent(timedelta(0), event("bought")), event_id=event_id)
    assert steps_of(trace)[-2:] == [("w", "matched", 0), ("yes", "tagged", 0)]


def test_later_events_may_be_in_any_order_and_others_are_ignored() -> None:
    trace = run_simulation(
        BRANCHED,
        ScheduledEvent(9 * DAY, event("x")),
        ScheduledEvent(4 * DAY, event("bought")),
        ScheduledEvent(HOUR, event("sold")),
    )
    assert trace.tags == ("yes",)


@pytest.mark.parametrize(("names", "tags"), [(["bought", "sold"], ("yes",)), (["sold", "bought"], ("no",))])
def test_later_events_of_one_moment_come_in_the_order_of_the_list(names: list[str], tags: tuple[str, ...]) -> None:
    second = node("v", "wait_for_event", event="sold", timeoutSeconds=60)
    edges = "t>w w:matched>v v:matched>yes v:timeout>no"
    trace = run_simulation(
        build_automation(WAIT, second, YES, NO, edges=edges), *[ScheduledEvent(HOUR, event(name)) for name in names]
    )
    assert trace.tags == tags
    assert trace.steps[2].detail == {"event": "bought"}  # without an id: the event is not stored


def test_the_contact_has_what_all_events_of_a_moment_changed_also_in_a_masked_trace() -> None:
    plan = node("c", "condition", filters=[{"path": "contact.plan", "operator": "exists"}])
    automation = build_automation(WAIT, plan, YES, NO, edges="t>w w:matched>c c:true>yes c:false>no")
    later = ScheduledEvent(HOUR, event("bought")), ScheduledEvent(HOUR, event("sold", attributes={"plan": "pro"}))
    trace = run_simulation(automation, *later)
    assert trace.tags == ("yes",)
    assert run_simulation(automation, *later, visible_contact=contact_from(None)) == trace


def test_filters_of_a_wait_see_the_later_event_and_the_updated_contact() -> None:
    filters = [
        {"path": path, "operator": "eq", "value": value} for path, value in (("size", 2), ("contact.plan", "pro"))
    ]
    wait = node("w", "wait_for_event", event="bought", timeoutSeconds=86_400, filters=filters)
    automation = build_automation(wait, YES, NO, edges="t>w w:matched>yes w:timeout>no")
    small, other = event("bought", payload={"size": 1}), event("bought", payload={"size": 2})
    right = event("bought", payload={"size": 2}, attributes={"plan": "pro"})
    trace = run_simulation(
        automation, ScheduledEvent(HOUR, small), ScheduledEvent(2 * HOUR, other), ScheduledEvent(3 * HOUR, right)
    )
    assert steps_of(trace)[1:3] == [("w", "waiting", 0), ("w", "matched", 1 / 8)]


def test_an_event_that_does_not_pass_is_reported_with_its_verdicts() -> None:
    where = {"path": "day | days_since == 0", "operator": "where"}
    wait = node("w", "wait_for_event", event="bought", timeoutSeconds=86_400, where="day | days_since == 0")
    automation = build_automation(wait, YES, edges="t>w w:matched>yes")
    late = ScheduledEvent(HOUR, event("bought", payload={"day": "2026-11-18"}))
    trace = run_simulation(automation, late, ScheduledEvent(2 * HOUR, event("sold")))
    (verdict,) = explain([Where(where["path"])], {"day": "2026-11-18"}, NOW + HOUR)
    assert trace.missed == (MissedEvent("w", "bought", NOW + HOUR, (verdict,)),)
    assert run_simulation(automation, late, visible_contact=contact_from(None)).missed == trace.missed
    assert run_simulation(build_automation(DELAY), late).missed == ()


def test_where_is_judged_at_the_moment_of_the_event() -> None:
    trigger = Trigger(None, (Where("day | days_since == 2"),))
    automation = SimulatedAutomation(trigger, build_automation(YES).graph)
    sent, masking = event(payload={"day": "2026-11-18"}), SimulationInput(visible_contact=contact_from(None))
    for now, matched in ((NOW, True), (NOW + DAY, False)):
        trace = simulate(automation, sent, contact_from(None), now)
        masked = simulate(automation, sent, contact_from(None), now, masking)
        assert (trace.matched, masked) == (matched, trace)


@pytest.mark.parametrize(
    ("until", "state", "tags"),
    [
        (NOW - HOUR, State.PENDING, ()),
        (NOW, State.WAITING, ()),
        (NOW + DAY - timedelta.resolution, State.WAITING, ()),
        (NOW + DAY, State.COMPLETED, ("yes",)),
        (None, State.COMPLETED, ("yes",)),
    ],
)
def test_a_simulation_stops_after_its_last_moment(until: datetime | None, state: State, tags: tuple[str, ...]) -> None:
    automation = build_automation(WAIT, YES, edges="t>w w:matched>yes")
    trace = run_simulation(automation, ScheduledEvent(DAY, event("bought")), until=until)
    assert (trace.state, trace.tags, trace.error) == (state, tags, None)


def test_a_bug_of_the_interpreter_ends_the_entry_and_is_reported() -> None:
    class Broken(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, _: object) -> bool:
            raise ZeroDivisionError

    ask = node("c", "condition", filters=[{"path": "contact.plan", "operator": "eq", "value": "pro"}])
    contact = replace(contact_from(None), attributes={"plan": Broken()})
    reported = []
    circumstances = SimulationInput(report_bug=lambda automation_id, error: reported.append((automation_id, error)))
    trace = simulate(build_automation(YES, ask), event(), contact, NOW, circumstances)
    assert (trace.state, trace.outcome, trace.error) == (
        State.DEAD,
        "internal_error",
        "internal_error: ZeroDivisionError",
    )
    assert (trace.steps, trace.tags) == ((), ())
    assert [(automation_id, type(error)) for automation_id, error in reported] == [(SIMULATED_ID, ZeroDivisionError)]


def test_a_graph_without_its_holdout_or_in_another_locale() -> None:
    title = {"de": {"title": "Hallo", "body": "-"}}
    message = node("m", "send_inapp", title="Hi", body="-", locales=title)
    graph = build_automation(message, settings={"holdout": 20}).graph
    assert graph is not None
    assert (graph.settings.holdout, without_holdout(graph).settings) == (20, replace(graph.settings, holdout=0))
    assert (
        without_holdout(without_holdout(graph))
        == without_holdout(graph)
        == replace(graph, settings=replace(graph.settings, holdout=0))
    )
    for shown, text in ((without_holdout(graph), "Hi"), (in_locale(without_holdout(graph), "de"), "Hallo")):
        trace = run_simulation(SimulatedAutomation(ANY, shown))
        assert [message.title for message in trace.messages] == [text]  # type: ignore[union-attr]


def test_later_events_update_the_contact() -> None:
    trace = run_simulation(
        build_automation(DELAY, MESSAGE), ScheduledEvent(DAY, event("x", attributes={"plan": "pro"}))
    )
    assert [message.body for message in trace.messages] == ["pro"]  # type: ignore[union-attr]


def test_templates_see_the_event_that_started_the_entry_after_a_wait() -> None:
    message = node("m", "send_inapp", title="{{ event }}", body="b")
    trace = run_simulation(
        build_automation(WAIT, message, edges="t>w w:matched>m"), ScheduledEvent(DAY, event("bought"))
    )
    assert [message.title for message in trace.messages] == ["paid"]  # type: ignore[union-attr]


def test_the_goal_ends_the_entry_early() -> None:
    automation = build_automation(DELAY, MESSAGE, settings={"goal": {"event": "bought"}})
    trace = run_simulation(automation, ScheduledEvent(DAY, event("other")), ScheduledEvent(2 * DAY, event("bought")))
    assert steps_of(trace)[2:] == [("d", "goal", 2)]
    assert (trace.state, trace.outcome, trace.messages) == (State.EXITED, "goal", ())


def test_an_event_that_fails_the_goals_filters_does_not_change_a_delay() -> None:
    goal = {"event": "bought", "filters": [{"path": "plan", "operator": "eq", "value": "pro"}]}
    automation = build_automation(DELAY, YES, settings={"goal": goal})
    assert steps_of(run_simulation(automation, ScheduledEvent(DAY, event("bought")))) == steps_of(
        run_simulation(automation)
    )


def test_a_message_in_quiet_hours_is_sent_when_they_end() -> None:
    automation = build_automation(MESSAGE, YES, settings={"quietHours": {"from": "22:00", "to": "08:00"}})
    trace = simulate(automation, event(attributes={"timezone": "Asia/Tokyo"}), contact_from(None), NOW + 4 * HOUR)
    assert steps_of(trace) == [
        ("t", "entered", 4 / 24),
        ("m", "waiting", 4 / 24),
        ("m", "sent", 13 / 24),
        ("yes", "tagged", 13 / 24),
    ]


def test_the_cap_counts_earlier_messages_and_those_of_the_run() -> None:
    messages = [MESSAGE | {"id": f"m{number}"} for number in range(3)]
    automation = build_automation(*messages, settings={"frequencyCap": {"messages": 2, "seconds": 86_400}})
    assert [step.outcome for step in run_simulation(automation).steps] == ["entered", "sent", "sent", "skipped"]
    history = ContactHistory(messages_at=(NOW - HOUR,))
    assert [step.outcome for step in run_simulation(automation, history=history).steps] == [
        "entered",
        "sent",
        "skipped",
        "skipped",
    ]


def test_the_history_decides_about_reentry() -> None:
    trace = run_simulation(
        build_automation(YES, settings={"reentry": {"policy": "once"}}), history=ContactHistory(entered_at=NOW)
    )
    assert (trace.matched, trace.state, trace.outcome, trace.tags) == (True, State.CANCELLED, "reentry", ())


def test_tags_added_before_a_wait_or_a_retry_remain() -> None:
    condition = node("c", "condition", filters=[{"path": "contact.tags", "operator": "contains", "value": "yes"}])
    automation = build_automation(YES, DELAY, condition, NO, edges="t>yes yes>d d>c c:true>no")
    assert run_simulation(automation).tags == ("yes", "no")


def test_changes_of_the_contact_are_listed() -> None:
    automation = build_automation(
        node("u", "update_contact", attributes={"a": 1, "b": "{{ event }}"}),
        node("v", "update_contact", attributes={"a": 2}),
        node("r", "remove_tag", tag="old"),
    )
    trace = run_simulation(automation)
    assert (trace.attributes, trace.removed_tags) == ({"a": 2, "b": "paid"}, ("old",))


def test_messages_in_a_trace_have_their_channel() -> None:
    automation = build_automation(
        MESSAGE,
        node("e", "send_email", subject="s", body="b"),
        node("h", "send_webhook", url="https://a.co", body={"n": 1}),
    )
    trace = simulate(
        automation, event(contact={"walletAddress": evm_wallet("A"), "email": "a@b.co"}), contact_from(None), NOW
    )
    written = [
        {key: message[key] for key in message if key not in ("id", "nodeId")}
        for message in decode(encode(trace))["messages"]
    ]
    assert written == [
        {"channel": "inapp", "walletAddress": evm_wallet("a"), "title": "Hi", "body": "?", "data": None},
        {"channel": "email", "email": "a@b.co", "subject": "s", "body": "b", "html": False, "trackClicks": False},
        {"channel": "webhook", "url": "https://a.co", "body": '{"n":1}'},
    ]


@pytest.mark.parametrize("now", [EARLIEST, LATEST])
def test_a_thousand_waits_of_a_year_are_valid_dates(now: datetime) -> None:
    delays = [node(str(number), "delay", seconds=366 * 86_400) for number in range(999)]
    assert len(run_simulation(build_automation(*delays), now=now).steps) == 1 + 2 * 999
