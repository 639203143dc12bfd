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
from api.language.decision import Decision
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
from api.language.seen import seen, seen_verdicts
from api.language.trigger import Trigger, flat_context


class Automation(msgspec.Struct, frozen=True):
    """What is simulated: a trigger, and a graph (None: nothing is published). By its id a split knows who goes where."""

    trigger: Trigger
    graph: Graph | None
    id: str = SIMULATED


class Given(msgspec.Struct, frozen=True):
    """What a simulation takes for granted: what happened to the contact before, and which of its events come later.

    `until`: the moment at which to look; None: when the entry has ended. `seen_as`: the contact as the reader of the trace may see it;
    None: as it is.
    """

    past: Past = Past()
    later: tuple[Later, ...] = ()
    retries: RetryPolicy = DEFAULT_POLICY
    entry_id: str = SIMULATED
    until: datetime | None = None
    seen_as: Contact | None = None


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
    facts = _facts(event, contact, given)
    shown = None if given.seen_as is None else _facts(event, given.seen_as, given)
    verdicts = _verdicts(automation.trigger, facts)
    told = verdicts if shown is None else seen_verdicts(verdicts, _verdicts(automation.trigger, shown))
    named = automation.trigger.names_event(event.name, on_chain=event.on_chain)
    if not named or not all(verdict.passed for verdict in verdicts):
        return Trace(False, told, name_matched=named)
    life = _Life(_graph_for(contact, automation.graph), Run(given.entry_id, automation.id), facts, shown, now)
    life.live(sorted(given.later, key=lambda each: each.after), given.until)
    return life.trace(told)


def _facts(event: Event, contact: Contact, given: Given) -> Facts:
    payload: dict[str, Any] = decode(event.payload)
    contact = meeting(contact, event)
    return Facts(event.name, event.identifiers, payload, contact, retries=given.retries, past=given.past)


def _verdicts(trigger: Trigger, facts: Facts) -> tuple[Verdict, ...]:
    who = identifiers_of(facts.sent, facts.contact.identifiers)
    return explain(trigger.filters, flat_context(facts.event, facts.contact.id, who, facts.payload))


def _graph_for(contact: Contact, graph: Graph | None) -> Graph | None:
    """Return what the contact goes through: one that is nobody's is never held out, since on which side it falls means nothing."""
    return without_holdout(graph) if graph is not None and contact.id == SIMULATED else graph


def without_holdout(graph: Graph) -> Graph:
    """Return the graph as those go through it who are treated."""
    if not graph.settings.holdout:
        return graph
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, holdout=0))


class _Life:
    """One entry from beginning to end, and what gathers on the way. `shown`: the facts as the reader may see them, if not as they are."""

    def __init__(self, graph: Graph | None, run: Run, facts: Facts, shown: Facts | None, now: datetime) -> None:
        self._graph = graph
        self._run = run
        self._error = run.error
        self._facts = facts
        self._shown = shown
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
            self._error,
            missed=tuple(self._missed),
        )

    def _meet(self, later: Later) -> None:
        """Let an event come: it leaves its mark on the contact, and wakes the entry that waits for it."""
        event, at = later.event, self._began_at + later.after
        arrival = Arrival(at, event.name, event.identifiers, decode(event.payload))
        self._facts = _met(self._facts, event, arrival)
        self._shown = None if self._shown is None else _met(self._shown, event, arrival)
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
            if self._shown is not None:
                verdicts = seen_verdicts(verdicts, explain(node.action.filters, self._shown.context_of(arrival)))
            self._missed.append(Missed(node.id, arrival.event, arrival.at, verdicts))

    def _claim(self, now: datetime) -> None:
        """Take the entry as far as it goes at one moment."""
        self._now = max(self._now, now)
        self._run = self._run.claimed()
        while self._run.state is State.RUNNING:
            decision = advance(self._graph, self._run, self._facts, self._now)
            told = self._told(decision)
            self._run, self._error = decision.run, told.run.error
            if told.step is not None:
                self._steps.append(told.step)
            if decision.effects:
                self._facts = after(self._facts, decision.effects, self._now)
                self._shown = None if self._shown is None else after(self._shown, told.effects, self._now)
                for effect in told.effects:
                    self._note(effect)

    def _told(self, decision: Decision) -> Decision:
        """Return what the reader is told of a decision that was just made."""
        if self._shown is None:
            return decision
        return seen(decision, advance(self._graph, self._run, self._shown, self._now))

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


def _met(facts: Facts, event: Event, arrival: Arrival) -> Facts:
    return msgspec.structs.replace(facts, contact=meeting(facts.contact, event), arrivals=(*facts.arrivals, arrival))


_GOING = frozenset({State.PENDING, State.WAITING, State.RETRYING})
