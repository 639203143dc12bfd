"""Whatever is drawn: simulations end, along the edges; what `check` lets through runs; and `needs` is all that is needed."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.language.advance import Needs, advance, needs
from api.language.check import check, errors
from api.language.codec import decode
from api.language.contact import Contact, meeting
from api.language.described import Later
from api.language.event import Event, Identifiers
from api.language.facts import Arrival, Facts, Past, after
from api.language.graph import Graph
from api.language.horizon import horizon, longest_wait
from api.language.retry import DEFAULT_POLICY, uniform
from api.language.run import MOVES, TERMINAL, Run, State, Step
from api.language.simulate import Automation, Given, Trace, simulate
from api.language.trigger import Trigger
from tests.language.drawing import NOW, any_graphs, contacts, events, graph_of, later, sound_graphs

ANY = Trigger()
CANNOT_RUN = {"node_missing", "node_invalid", "loop"}
STAYING = {"waiting", "failed", "refused", "goal"}  # outcomes after which no edge is followed
HOUR = timedelta(hours=1)

pasts = st.tuples(
    st.sampled_from([None, None, NOW - HOUR, NOW - 60 * HOUR]),
    st.booleans(),
    st.sampled_from([0, 0, 99, 100]),
    st.lists(st.sampled_from([NOW - HOUR, NOW - 30 * HOUR]), max_size=2).map(tuple),
).map(lambda parts: Past(*parts))


def ran(graph: Graph, event: Event, contact: Contact, coming: list[Later], past: Past) -> Trace:
    return simulate(Automation(ANY, graph), event, contact, NOW, Given(past, tuple(coming)))


def is_legal(graph: Graph, steps: tuple[Step, ...]) -> bool:
    """Whether every step is at a node of the graph, after the one before it in time and along an edge."""
    known = all(step.node_id in graph.by_id for step in steps)
    for step, following in pairwise(steps):
        target = step.node_id if step.outcome in STAYING else graph.following.get((step.node_id, step.handle))
        known = known and target == following.node_id and step.at <= following.at
    return known


@given(any_graphs() | sound_graphs(), events(), contacts, later, pasts)
def test_a_simulation_ends_along_the_edges(
    written: object, event: Event, contact: Contact, coming: list[Later], past: Past
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    trace = ran(graph, event, contact, coming, past)
    assert trace.state in TERMINAL
    assert is_legal(graph, trace.steps)
    most = DEFAULT_POLICY.most_attempts("webhook")
    assert len(trace.steps) <= len(graph.nodes) * (most + 1) + 1
    ids = [message.id for message in trace.messages]
    assert len(ids) == len(set(ids))


@given(any_graphs() | sound_graphs(), events(), contacts, later, pasts)
def test_check_refuses_what_could_not_run(
    written: object, event: Event, contact: Contact, coming: list[Later], past: Past
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    trace = ran(graph, event, contact, coming, past)
    if trace.outcome in CANNOT_RUN:
        assert errors(check(ANY, graph))


@given(sound_graphs())
def test_check_lets_sound_graphs_through(written: object) -> None:
    assert errors(check(ANY, graph_of(written))) == ()  # type: ignore[arg-type]


class Miser:
    """A driver like the engine: reads only what `needs` names, keeps a run only as its fields, looks at every event that wakes it."""

    def __init__(self, graph: Graph, event: Event, contact: Contact, coming: list[Later], past: Past) -> None:
        self.graph, self.event, self.past = graph, event, past
        self.coming = sorted(coming, key=lambda each: each.after)
        self.contact = meeting(contact, event)
        self.now = NOW
        self.run = Run("00000000-0000-8000-8000-000000000000", "00000000-0000-8000-8000-000000000000")
        self.met: list[Arrival] = []
        self.messages_at = list(past.messages_at)
        self.steps: list[Step] = []

    def drive(self) -> None:
        while self.run.state not in TERMINAL:
            due_at = self.run.due_at or self.now
            if self.coming and NOW + self.coming[0].after <= due_at:
                self.meet(self.coming.pop(0))
                woken = self.run.state is State.WAITING and self.met[-1].event in needs(self.graph, self.run).arrivals
                due_at = self.met[-1].at
                if not woken:
                    continue
            self.now = max(self.now, due_at)
            self.claim()

    def meet(self, later: Later) -> None:
        event = later.event
        self.contact = meeting(self.contact, event)
        self.met.append(Arrival(NOW + later.after, event.name, event.identifiers, decode(event.payload)))

    def claim(self) -> None:
        before = self.run
        self.run = Run(**msgspec.structs.asdict(before)).claimed()
        facts = self.facts(needs(self.graph, self.run))
        while self.run.state is State.RUNNING:
            decision = advance(self.graph, self.run, facts, self.now)
            facts = after(facts, decision.effects, self.now)
            self.run = decision.run
            self.steps += [decision.step] if decision.step else []
        assert (State.RUNNING, self.run.state) in MOVES
        self.contact = facts.contact
        self.messages_at += facts.past.messages_at[len(self.recent(needs(self.graph, before))) :]

    def facts(self, wanted: Needs) -> Facts:
        past = Past(
            self.past.entered_at if wanted.entries else None,
            self.past.running if wanted.entries else False,
            self.past.recent if wanted.recent else 0,
            self.recent(wanted),
        )
        arrivals = [
            each
            for each in self.met
            if each.event in wanted.arrivals and (wanted.since is None or each.at > wanted.since)
        ]
        sent, payload = self.event.identifiers, decode(self.event.payload)
        return Facts(self.event.name, sent, payload, self.contact, past=past, arrivals=tuple(arrivals))

    def recent(self, wanted: Needs) -> tuple[datetime, ...]:
        if wanted.messages is None:
            return ()
        return tuple(at for at in self.messages_at if at > self.now - wanted.messages)


@given(sound_graphs(), events(), contacts, later, pasts)
def test_what_is_needed_is_enough(
    written: object, event: Event, contact: Contact, coming: list[Later], past: Past
) -> None:
    graph = graph_of(written)  # type: ignore[arg-type]
    miser = Miser(graph, event, contact, coming, past)
    miser.drive()
    trace = ran(graph, event, contact, coming, past)
    assert miser.steps == list(trace.steps)
    assert (miser.run.state, miser.run.outcome, miser.run.error) == (trace.state, trace.outcome, trace.error)


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
def test_no_simulation_ends_later_than_its_horizon(
    written: dict[str, Any], event: Event, known: bool, coming: list[Later], now: datetime, zone: str | None, night: Any
) -> None:
    graph = graph_of(written | {"settings": night})
    contact = Contact("c", Identifiers("0xa", "ann@b.co") if known else Identifiers(), {"timezone": zone})
    for retries in (DEFAULT_POLICY, uniform((10.0, 40_000.0))):
        trace = simulate(Automation(ANY, graph), event, contact, now, Given(later=tuple(coming), retries=retries))
        assert trace.steps[-1].at - now <= longest_wait(graph, retries) < horizon(graph, retries)
