"""Run an automation on one event without doing anything: the engine's interpreter under a virtual clock."""

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from api.language.action import WaitForEvent
from api.language.advance import advance, needs
from api.language.codec import Json, decode
from api.language.contact import Contact, identifiers_of, meeting
from api.language.described import SIMULATED, Later
from api.language.effect import (
    ContactUpdated,
    Effect,
    EmailMessage,
    InappMessage,
    Message,
    TagAdded,
    TagRemoved,
    WebhookMessage,
)
from api.language.event import Event
from api.language.facts import Arrival, Facts, Past, after
from api.language.filter import Verdict, explain
from api.language.graph import Graph
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.run import Run, State, Step
from api.language.trigger import Trigger, flat_context


class Automation(msgspec.Struct, frozen=True):
    """What is simulated: a trigger, and a graph (None: nothing is published). By its id a split knows who goes where."""

    trigger: Trigger
    graph: Graph | None
    id: str = SIMULATED


class Given(msgspec.Struct, frozen=True):
    """What a simulation takes for granted: what happened to the contact before, and which of its events come later.

    `until`: the moment at which to look; None: when the entry has ended.
    """

    past: Past = Past()
    later: tuple[Later, ...] = ()
    retries: RetryPolicy = DEFAULT_POLICY
    entry_id: str = SIMULATED
    until: datetime | None = None


NOTHING = Given()
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


class Missed(msgspec.Struct, frozen=True, rename="camel"):
    """An event that an entry waited for by its name, and why it was not the one."""

    node_id: str
    event: str
    at: datetime
    verdicts: tuple[Verdict, ...]


class Trace(msgspec.Struct, frozen=True, rename="camel"):
    """What would happen: `steps` in order, in the words of an entry's own history.

    `matched` False: the trigger does not fire, `verdicts` say why. `state` and `outcome` are those the entry would end with.
    `tags`, `removed_tags` and `attributes` are what the steps would write to the contact, in the order in which they do.
    `missed`: events that came while it waited for one of that name, and did not pass.
    """

    matched: bool
    verdicts: tuple[Verdict, ...]
    steps: tuple[Step, ...] = ()
    messages: tuple[Message, ...] = ()
    tags: tuple[str, ...] = ()
    removed_tags: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    state: State | None = None
    outcome: str | None = None
    error: str | None = None
    name_matched: bool = True
    missed: tuple[Missed, ...] = ()


def simulate(automation: Automation, event: Event, contact: Contact, now: datetime, given: Given = NOTHING) -> Trace:
    """Return the trace of `event` from `contact` at `now`. Waits and retries pass at once, on a virtual clock.

    `now` is between `EARLIEST` and `LATEST`: a thousand waits of a year after it are still dates.
    """
    payload: dict[str, Any] = decode(event.payload)
    contact = meeting(contact, event)
    who = identifiers_of(event.identifiers, contact.identifiers)
    context = flat_context(event.name, contact.id, who, payload)
    verdicts = explain(automation.trigger.filters, context)
    named = automation.trigger.names_event(event.name)
    if not named or not all(verdict.passed for verdict in verdicts):
        return Trace(False, verdicts, name_matched=named)
    facts = Facts(event.name, event.identifiers, payload, contact, retries=given.retries, past=given.past)
    life = _Life(_graph_for(contact, automation.graph), Run(given.entry_id, automation.id), facts, now)
    life.live(sorted(given.later, key=lambda each: each.after), given.until)
    return life.trace(verdicts)


def _graph_for(contact: Contact, graph: Graph | None) -> Graph | None:
    """Return what the contact goes through: one that is nobody's is never held out, since on which side it falls means nothing."""
    return without_holdout(graph) if graph is not None and contact.id == SIMULATED else graph


def without_holdout(graph: Graph) -> Graph:
    """Return the graph as those go through it who are treated."""
    if not graph.settings.holdout:
        return graph
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, holdout=0))


class _Life:
    """One entry from beginning to end, and what gathers on the way."""

    def __init__(self, graph: Graph | None, run: Run, facts: Facts, now: datetime) -> None:
        self._graph = graph
        self._run = run
        self._facts = facts
        self._now = self._began_at = now
        self._steps: list[Step] = []
        self._messages: list[Message] = []
        self._tags: list[str] = []
        self._removed_tags: list[str] = []
        self._attributes: dict[str, Json] = {}
        self._missed: list[Missed] = []

    def live(self, later: Iterable[Later], until: datetime | None) -> None:
        """Let the clock jump from one moment at which something happens to the next, until a moment or the entry's end."""
        coming = deque(later)
        while self._run.state in _GOING:
            due_at = self._run.due_at or self._now
            comes_at = self._began_at + coming[0].after if coming else None
            following = due_at if comes_at is None else min(due_at, comes_at)
            if until is not None and following > until:
                return
            if following == comes_at:
                self._meet(coming.popleft())
            else:
                self._claim(due_at)

    def trace(self, verdicts: tuple[Verdict, ...]) -> Trace:
        """Return all that happened."""
        run = self._run
        return Trace(
            True,
            verdicts,
            tuple(self._steps),
            tuple(self._messages),
            tuple(self._tags),
            tuple(self._removed_tags),
            self._attributes,
            run.state,
            run.outcome,
            run.error,
            missed=tuple(self._missed),
        )

    def _meet(self, later: Later) -> None:
        """Let an event come: it leaves its mark on the contact, and wakes the entry that waits for it."""
        event, at = later.event, self._began_at + later.after
        arrival = Arrival(at, event.name, event.identifiers, decode(event.payload))
        self._facts = msgspec.structs.replace(
            self._facts, contact=meeting(self._facts.contact, event), arrivals=(*self._facts.arrivals, arrival)
        )
        if self._run.state is State.WAITING and event.name in needs(self._graph, self._run).arrivals:
            self._claim(at)
            self._note_missed(arrival)

    def _note_missed(self, arrival: Arrival) -> None:
        """Keep why an event of the awaited name did not end the wait."""
        node = None if self._graph is None else self._graph.by_id.get(self._run.node_id or "")
        if self._run.state is not State.WAITING or node is None or not isinstance(node.action, WaitForEvent):
            return
        verdicts = explain(node.action.filters, self._facts.context_of(arrival))
        if node.action.event == arrival.event and not all(each.passed for each in verdicts):
            self._missed.append(Missed(node.id, arrival.event, arrival.at, verdicts))

    def _claim(self, now: datetime) -> None:
        """Take the entry as far as it goes at one moment."""
        self._now = max(self._now, now)
        self._run = self._run.claimed()
        while self._run.state is State.RUNNING:
            decision = advance(self._graph, self._run, self._facts, self._now)
            self._run = decision.run
            if decision.step is not None:
                self._steps.append(decision.step)
            if decision.effects:
                self._facts = after(self._facts, decision.effects, self._now)
                for effect in decision.effects:
                    self._note(effect)

    def _note(self, effect: Effect) -> None:
        match effect:
            case InappMessage() | EmailMessage() | WebhookMessage():
                self._messages.append(effect)
            case TagAdded(tag=tag):
                self._tags.append(tag)
            case TagRemoved(tag=tag):
                self._removed_tags.append(tag)
            case ContactUpdated(attributes=attributes):
                self._attributes.update(attributes)


_GOING = frozenset({State.PENDING, State.WAITING, State.RETRYING})
