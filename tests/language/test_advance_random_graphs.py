"""On random graphs, simulations end along the edges, and the required facts are enough."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import (
    NOW,
    STEPS,
    any_graphs,
    contacts,
    events,
    filters,
    graph_of,
    later,
    nodes,
    sound_graphs,
    ways_of,
)
from workbench.display import words
from workbench.language.actions import NODE_KINDS, Collect, read_action
from workbench.language.advance import RequiredFacts, advance, attribution_window, max_duration, required_facts
from workbench.language.channel import DEFAULT_POLICY, WEBHOOK, RetryPolicy
from workbench.language.check import check, errors
from workbench.language.codec import decode, json_equal
from workbench.language.contact import ContactState, apply_event
from workbench.language.event import Event, Identifiers
from workbench.language.facts import ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.filter import OPERATORS, Filter
from workbench.language.graph import Graph
from workbench.language.run import TERMINAL, TRANSITIONS, Run, State, Step
from workbench.language.simulate import ScheduledEvent, SimulatedAutomation, SimulationInput, Trace, simulate
from workbench.language.trigger import Trigger, is_trigger

ANY = Trigger()
CANNOT_RUN = {"node_missing", "node_invalid", "loop"}
STAYING = {"waiting", "failed", "refused", "goal"}  # outcomes after which no edge is followed
HOUR = timedelta(hours=1)

pasts = st.tuples(
    st.sampled_from([None, None, NOW - HOUR, NOW - 60 * HOUR]),
    st.booleans(),
    st.sampled_from([0, 0, 99, 100]),
    st.lists(st.sampled_from([NOW - HOUR, NOW - 30 * HOUR]), max_size=2).map(sorted).map(tuple),
).map(lambda parts: ContactHistory(*parts))


def run_simulation(
    graph: Graph, event: Event, contact: ContactState, scheduled_events: list[ScheduledEvent], past: ContactHistory
) -> Trace:
    trace = simulate(
        SimulatedAutomation(ANY, graph), event, contact, NOW, SimulationInput(past, tuple(scheduled_events))
    )
    assert trace.outcome != "internal_error"
    return trace


def is_legal(graph: Graph, steps: tuple[Step, ...]) -> bool:
    """Return whether every step is at a node of the graph and follows the previous one in time and along an edge."""
    legal = all(step.node_id in graph.by_id for step in steps)
    for step, following in pairwise(steps):
        target = step.node_id if step.outcome in STAYING else graph.next_node_ids.get((step.node_id, step.handle))
        legal = legal and target == following.node_id and step.at <= following.at
    return legal


@given(any_graphs() | sound_graphs(), events(), contacts, later, pasts)
def test_a_simulation_ends_along_the_edges(
    written: object, event: Event, contact: ContactState, scheduled_events: list[ScheduledEvent], past: ContactHistory
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    trace = run_simulation(graph, event, contact, scheduled_events, past)
    assert trace.state in TERMINAL
    assert is_legal(graph, trace.steps)
    most = DEFAULT_POLICY.max_attempts(WEBHOOK)
    assert len(trace.steps) <= len(graph.nodes) * (most + 1) + 1
    # A draft can have loops and duplicate ids: a node that is visited again sends the id of its first message again.
    ids, nodes = {message.id for message in trace.messages}, {message.node_id for message in trace.messages}
    assert len(ids) == len(nodes)
    assert len(ids) == len(trace.messages) or errors(check(ANY, graph))


@given(any_graphs() | sound_graphs(), events(), contacts, later, pasts)
def test_check_refuses_graphs_that_cannot_run(
    written: object, event: Event, contact: ContactState, scheduled_events: list[ScheduledEvent], past: ContactHistory
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    trace = run_simulation(graph, event, contact, scheduled_events, past)
    if trace.outcome in CANNOT_RUN:
        assert errors(check(ANY, graph))


@given(sound_graphs())
def test_check_accepts_valid_graphs(written: object) -> None:
    assert errors(check(ANY, graph_of(written))) == ()  # type: ignore[arg-type]


def test_random_graphs_have_every_kind_of_node() -> None:
    assert STEPS.keys() == {kind for kind in NODE_KINDS if not is_trigger(kind)}


@given(nodes)
def test_random_graphs_leave_a_node_by_every_handle(node: dict[str, Any]) -> None:
    assert ways_of(node) == list(read_action(node["type"], node["data"], "n").handles)


@pytest.mark.parametrize("operator", OPERATORS)
def test_random_graphs_have_every_operator(operator: str) -> None:
    items = find(filters, lambda items: any(item["operator"] == operator for item in items))
    (example, *_) = (item for item in items if item["operator"] == operator)
    assert "unknown operator" not in words.condition(Filter(**example))


class MinimalEngine:
    """Drives a run like the engine: with the required facts only, from the fields of the run, woken by events."""

    def __init__(
        self,
        graph: Graph,
        event: Event,
        contact: ContactState,
        scheduled_events: list[ScheduledEvent],
        past: ContactHistory,
    ) -> None:
        self.graph, self.event, self.history = graph, event, past
        self.scheduled_events = sorted(scheduled_events, key=lambda scheduled: scheduled.after)
        self.contact = apply_event(contact, event.identifiers, event.attributes)
        self.now = NOW
        self.run = Run("00000000-0000-8000-8000-000000000000", "00000000-0000-8000-8000-000000000000")
        self.arrivals: list[LaterEvent] = []
        self.messages_at = list(past.messages_at)
        self.steps: list[Step] = []
        self.joined: list[LaterEvent] = []

    def drive(self) -> None:
        while self.run.state not in TERMINAL:
            due_at = self.run.due_at or self.now
            if self.scheduled_events and NOW + self.scheduled_events[0].after <= due_at:
                before = self.contact.attributes
                self.receive(self.scheduled_events.pop(0))
                required, after = required_facts(self.graph, self.run), self.contact.attributes
                moved = any(before.get(name) != after.get(name) for name in required.attributes)
                woken = self.run.state is State.WAITING and (moved or self.arrivals[-1].event in required.later_events)
                if woken:
                    self.now = max(self.now, self.arrivals[-1].at)
                    self.claim()
                self.join(self.arrivals[-1])
                continue
            self.now = max(self.now, due_at)
            self.claim()

    def join(self, arrival: LaterEvent) -> None:
        """Add an event to those that the run collects, if it waits for such events."""
        node, due_at = self.graph.by_id.get(self.run.node_id or ""), self.run.due_at
        is_collecting = self.run.state is State.WAITING and due_at is not None and arrival.at < due_at
        if (
            not is_collecting
            or node is None
            or not isinstance(node.action, Collect)
            or arrival.event != self.event.name
        ):
            return
        key, payload = node.action.key, decode(self.event.payload)
        if key is None or json_equal(payload.get(key, "?"), arrival.payload.get(key, "?")):
            self.joined.append(arrival)
            if 1 + len(self.joined) >= node.action.max:
                self.run = msgspec.structs.replace(self.run, due_at=arrival.at)

    def receive(self, later: ScheduledEvent) -> None:
        event = later.event
        self.contact = apply_event(self.contact, event.identifiers, event.attributes)
        self.arrivals.append(LaterEvent(NOW + later.after, event.name, event.identifiers, decode(event.payload)))

    def claim(self) -> None:
        before = self.run
        self.run = Run(**msgspec.structs.asdict(before)).claimed()
        facts = self.facts(required_facts(self.graph, self.run))
        while self.run.state is State.RUNNING:
            decision = advance(self.graph, self.run, facts, self.now)
            facts = apply_effects(facts, decision.effects, self.now)
            self.run = decision.run
            self.steps += [decision.step] if decision.step else []
        assert (State.RUNNING, self.run.state) in TRANSITIONS
        self.contact = facts.contact
        self.messages_at += facts.history.messages_at[len(self.recent(required_facts(self.graph, before))) :]

    def facts(self, required: RequiredFacts) -> Facts:
        past = ContactHistory(
            self.history.entered_at if required.entries else None,
            self.history.running if required.entries else False,
            self.history.recent if required.recent else 0,
            self.recent(required),
        )
        arrivals = [
            arrival
            for arrival in self.arrivals
            if arrival.event in required.later_events and (required.since is None or arrival.at > required.since)
        ]
        sent, payload = self.event.identifiers, decode(self.event.payload)
        joined = tuple(self.joined) if required.joined else () if required.collecting else None
        return Facts(
            self.event.name, sent, payload, self.contact, None, False, DEFAULT_POLICY, past, tuple(arrivals), joined
        )

    def recent(self, required: RequiredFacts) -> tuple[datetime, ...]:
        if required.messages is None:
            return ()
        return tuple(at for at in self.messages_at if at > self.now - required.messages)


@given(sound_graphs(), events(), contacts, later, pasts)
def test_the_required_facts_are_enough(
    written: object, event: Event, contact: ContactState, scheduled_events: list[ScheduledEvent], past: ContactHistory
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    engine = MinimalEngine(graph, event, contact, scheduled_events, past)
    engine.drive()
    trace = run_simulation(graph, event, contact, scheduled_events, past)
    assert engine.steps == list(trace.steps)
    assert (engine.run.state, engine.run.outcome, engine.run.error) == (trace.state, trace.outcome, trace.error)


STARTS = st.sampled_from(
    [
        NOW,
        datetime(2026, 10, 24, 20, 30, tzinfo=UTC),
        datetime(2023, 12, 17, 12, tzinfo=UTC),
    ]  # clocks are set back soon
)
ZONES = st.sampled_from([None, "Europe/Zurich", "Antarctica/Vostok", "Pacific/Kiritimati"])
NIGHTS = st.sampled_from(
    [{}, {"quietHours": {"from": "21:00", "to": "08:00"}}, {"quietHours": {"from": "03:00", "to": "02:00"}}]
)


@given(sound_graphs(), events(), st.booleans(), later, STARTS, ZONES, NIGHTS)
def test_no_simulation_ends_after_its_attribution_window(
    written: dict[str, Any],
    event: Event,
    has_addresses: bool,
    scheduled_events: list[ScheduledEvent],
    now: datetime,
    zone: str | None,
    night: Any,
) -> None:
    graph = graph_of(written | {"settings": night})
    contact = ContactState(
        "c", Identifiers(evm_wallet("a"), "ann@b.co") if has_addresses else Identifiers(), {"timezone": zone}
    )
    for retries in (DEFAULT_POLICY, RetryPolicy((10.0, 40_000.0))):
        trace = simulate(
            SimulatedAutomation(ANY, graph),
            event,
            contact,
            now,
            SimulationInput(later=tuple(scheduled_events), retries=retries),
        )
        assert trace.steps[-1].at - now <= max_duration(graph, retries) < attribution_window(graph, retries)
