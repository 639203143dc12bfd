"""Simulations: the engine's interpreter on a virtual clock, without performing anything.

`simulate` follows one entry of a described contact and described later events, which are validated like real ones. For
a reader without access to personal data the trace is redacted (see `redact`). `backtest` plays stored events.
"""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from workbench.language.actions import MAX_WAIT, WaitForEvent
from workbench.language.advance import advance, required_facts
from workbench.language.codec import Json, decode, encode, normalise, text_problem
from workbench.language.contact import ContactState, apply_event, merge_identifiers
from workbench.language.event import LOG_NAME, Event, Identifiers, normalise_email, read_event
from workbench.language.facts import ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.filter import Verdict, explain
from workbench.language.graph import Graph
from workbench.language.problem import Problem, Problems
from workbench.language.redact import redact_decision, redact_verdicts
from workbench.language.run import (
    CHANNELS,
    DEFAULT_POLICY,
    ContactUpdated,
    Effect,
    Message,
    RetryPolicy,
    Run,
    State,
    Step,
    TagAdded,
    TagRemoved,
)
from workbench.language.trigger import Trigger, flat_context

SIMULATED_ID = "00000000-0000-8000-8000-000000000000"
MAX_LATER_EVENTS = 100
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


class ScheduledEvent(msgspec.Struct, frozen=True):
    """An event of the same contact, this long after the one that starts the entry."""

    after: timedelta
    event: Event


class SimulatedAutomation(msgspec.Struct, frozen=True):
    """The automation to simulate. `graph` None: no version is published. The branches of splits depend on `id`."""

    trigger: Trigger
    graph: Graph | None
    id: str = SIMULATED_ID


class SimulationInput(msgspec.Struct, frozen=True):
    """The circumstances of a simulation: the history of the contact, and its later events.

    `until`: the time at which the simulation stops; None: when the entry has ended. `visible_contact`: the contact as
    the reader of the trace may see it; None: as it is.
    """

    history: ContactHistory = ContactHistory()
    later: tuple[ScheduledEvent, ...] = ()
    retries: RetryPolicy = DEFAULT_POLICY
    entry_id: str = SIMULATED_ID
    until: datetime | None = None
    visible_contact: ContactState | None = None


NO_INPUT = SimulationInput()


class MissedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event with the awaited name that did not pass the filters of the wait."""

    node_id: str
    event: str
    at: datetime
    verdicts: tuple[Verdict, ...]


class Trace(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a simulation: `steps` in order, in the format of an entry's history.

    `matched` False: the trigger does not fire, and `verdicts` give the reason. `state` and `outcome` are those of the
    entry at the end. `tags`, `removed_tags` and `attributes` are what the steps would write to the contact, in order.
    `missed`: events with an awaited name that did not pass the filters of the wait.
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
    missed: tuple[MissedEvent, ...] = ()


def simulate(
    automation: SimulatedAutomation,
    event: Event,
    contact: ContactState,
    now: datetime,
    given: SimulationInput = NO_INPUT,
) -> Trace:
    """Return the trace of `event` from `contact` at `now`. Waits and retries pass at once, on a virtual clock.

    `now` must be between `EARLIEST` and `LATEST`: a thousand waits of a year after that are still valid dates.
    """
    facts = _facts(event, contact, given)
    visible = None if given.visible_contact is None else _facts(event, given.visible_contact, given)
    true_verdicts = verdicts = _explain_trigger(automation.trigger, facts)
    if visible is not None:
        verdicts = redact_verdicts(verdicts, _explain_trigger(automation.trigger, visible))
    name_matched = automation.trigger.matches_event(event.name, on_chain=event.on_chain)
    if not name_matched or not all(verdict.passed for verdict in true_verdicts):
        return Trace(False, verdicts, name_matched=name_matched)
    graph = automation.graph
    if graph is not None and contact.id == SIMULATED_ID:
        graph = without_holdout(graph)  # the bucket of an invented id means nothing
    simulation = _Simulation(graph, Run(given.entry_id, automation.id), facts, visible, now)
    simulation.run(given.later, given.until)
    return simulation.trace(verdicts)


def without_holdout(graph: Graph) -> Graph:
    """Return the graph without its holdout."""
    if not graph.settings.holdout:
        return graph
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, holdout=0))


def contact_from(value: Mapping[str, Any] | None) -> ContactState:
    """Return a described contact (see `read_contact`); raise ValueError with its problems."""
    contact = read_contact(value)
    if isinstance(contact, ContactState):
        return contact
    raise ValueError("; ".join(map(str, contact)))


def read_contact(value: Any, field: str = "contact") -> ContactState | Problems:
    """Return a described contact, or its problems. Every field is optional:

    `id, email, walletAddress, externalId, attributes, tags, segments, optedOut`. Values are normalised as the service
    would store them: the wallet in lower case, the email in its normal form.
    """
    if value is None:
        return ContactState(SIMULATED_ID)
    if not isinstance(value, Mapping):
        return (Problem(field, "must be an object"),)
    problems: list[Problem] = []
    texts: dict[str, str | None] = {}
    for name in ("id", "email", "walletAddress", "externalId"):
        text = value.get(name)
        if text is not None and not isinstance(text, str):
            problems.append(Problem(f"{field}.{name}", "must be a string"))
            text = None
        elif text and (reason := text_problem(text)):
            problems.append(Problem(f"{field}.{name}", reason))
        texts[name] = text or None
    email = texts["email"] and normalise_email(texts["email"])
    if texts["email"] and email is None:
        problems.append(Problem(f"{field}.email", "not a valid email address"))
    attributes: dict[str, Json] = {}
    if isinstance(value.get("attributes"), Mapping):
        try:
            attributes = normalise(value["attributes"])
        except (TypeError, ValueError):
            problems.append(Problem(f"{field}.attributes", "must hold strings, numbers and booleans"))
    elif value.get("attributes") is not None:
        problems.append(Problem(f"{field}.attributes", "must be an object"))
    tags = _read_strings(value.get("tags"), f"{field}.tags", problems)
    segments = _read_strings(value.get("segments"), f"{field}.segments", problems)
    opted_out = _read_strings(value.get("optedOut"), f"{field}.optedOut", problems)
    if not set(opted_out) <= set(CHANNELS):
        problems.append(Problem(f"{field}.optedOut", f"must hold some of {', '.join(CHANNELS)}"))
    if problems:
        return tuple(problems)
    wallet = texts["walletAddress"]
    identifiers = Identifiers(wallet and wallet.lower(), email, texts["externalId"], wallet)
    return ContactState(texts["id"] or SIMULATED_ID, identifiers, attributes, tags, segments, opted_out)


def read_scheduled_events(value: Any, now_us: int, field: str, problems: list[Problem]) -> tuple[ScheduledEvent, ...]:
    """Return the later events in a decoded JSON value; add what is wrong with them to `problems`.

    The value is an array of `{afterSeconds, event}`; each event is validated at the time of its arrival.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LATER_EVENTS:
        problems.append(Problem(field, f"must be an array of at most {MAX_LATER_EVENTS} later events"))
        return ()
    max_seconds = MAX_WAIT.total_seconds()
    scheduled: list[ScheduledEvent] = []
    for index, item in enumerate(value):
        path = f"{field}[{index}]"
        described = item.get("event") if isinstance(item, dict) else None
        if not isinstance(described, dict):
            problems.append(Problem(f"{path}.event", "must be an event"))
            continue
        seconds = item.get("afterSeconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 < seconds <= max_seconds:
            reason = f"must be a number of seconds up to {max_seconds:,.0f} (366 days)"
            problems.append(Problem(f"{path}.afterSeconds", reason))
            continue
        after_us = int(seconds * 1_000_000)
        event = _read_awaited_log(described) or read_event(encode(described), now_us + after_us)
        if isinstance(event, Event):
            scheduled.append(ScheduledEvent(timedelta(microseconds=after_us), event))
        else:
            problems += [Problem(f"{path}.event.{item.field}".removesuffix("."), item.reason) for item in event]
    return tuple(scheduled)


def _read_awaited_log(described: dict[str, Any]) -> Event | None:
    """Return a contract log under the name that waits use for it (`0x…:Transfer`); None for custom events."""
    name, payload = described.get("event"), described.get("payload", {})
    if not isinstance(name, str) or not LOG_NAME.fullmatch(name) or not isinstance(payload, dict):
        return None
    return Event(name.lower(), Identifiers(), payload=encode(payload), on_chain=True)


def _read_strings(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    problems.append(Problem(field, "must be an array of strings"))
    return ()


def _facts(event: Event, contact: ContactState, given: SimulationInput) -> Facts:
    payload: dict[str, Any] = decode(event.payload)
    contact = apply_event(contact, event)
    return Facts(event.name, event.identifiers, payload, contact, retries=given.retries, history=given.history)


def _explain_trigger(trigger: Trigger, facts: Facts) -> tuple[Verdict, ...]:
    identifiers = merge_identifiers(facts.sent, facts.contact.identifiers)
    return explain(trigger.filters, flat_context(facts.event, facts.contact.id, identifiers, facts.payload))


class _Simulation:
    """One simulated entry. `visible`: the facts that the reader may see; None: the reader may see all."""

    def __init__(self, graph: Graph | None, run: Run, facts: Facts, visible: Facts | None, now: datetime) -> None:
        self._graph = graph
        self._run = run
        self._error = run.error
        self._facts = facts
        self._visible = visible
        self._now = self._started_at = now
        self._steps: list[Step] = []
        self._effects: list[Effect] = []
        self._missed: list[MissedEvent] = []

    def run(self, later: tuple[ScheduledEvent, ...], until: datetime | None) -> None:
        """Advance the clock from event to event until the given time or the end of the entry."""
        upcoming = deque(sorted(later, key=lambda scheduled: scheduled.after))
        while self._run.state in (State.PENDING, State.WAITING, State.RETRYING):
            due_at = self._run.due_at or self._now
            event_at = self._started_at + upcoming[0].after if upcoming else None
            # At the same time the event comes first, so it can still end a wait that times out at that moment.
            next_at = due_at if event_at is None else min(due_at, event_at)
            if until is not None and next_at > until:
                return
            if next_at == event_at:
                self._receive(upcoming.popleft().event, next_at)
            else:
                self._advance(due_at)

    def trace(self, verdicts: tuple[Verdict, ...]) -> Trace:
        attributes: dict[str, Json] = {}
        for effect in self._effects:
            if isinstance(effect, ContactUpdated):
                attributes |= effect.attributes
        return Trace(
            True,
            verdicts,
            tuple(self._steps),
            tuple(effect for effect in self._effects if isinstance(effect, Message)),
            tuple(effect.tag for effect in self._effects if isinstance(effect, TagAdded)),
            tuple(effect.tag for effect in self._effects if isinstance(effect, TagRemoved)),
            attributes,
            self._run.state,
            self._run.outcome,
            self._error,
            missed=tuple(self._missed),
        )

    def _receive(self, event: Event, at: datetime) -> None:
        """Apply a later event to the contact, and wake the entry if it waits for this name."""
        arrival = LaterEvent(at, event.name, event.identifiers, decode(event.payload))
        self._facts = _with_event(self._facts, event, arrival)
        self._visible = None if self._visible is None else _with_event(self._visible, event, arrival)
        waiting = self._run
        if waiting.state is not State.WAITING or event.name not in required_facts(self._graph, waiting).later_events:
            return
        self._advance(at)
        node = None if self._graph is None else self._graph.by_id.get(self._run.node_id or "")
        if self._run.state is not State.WAITING or node is None or not isinstance(node.action, WaitForEvent):
            return
        # The entry still waits: if it is for this event, its filters did not pass.
        verdicts = explain(node.action.filters, self._facts.context_of(arrival))
        if node.action.event == arrival.event and not all(verdict.passed for verdict in verdicts):
            if self._visible is not None:
                verdicts = redact_verdicts(verdicts, explain(node.action.filters, self._visible.context_of(arrival)))
            self._missed.append(MissedEvent(node.id, arrival.event, arrival.at, verdicts))

    def _advance(self, now: datetime) -> None:
        """Advance the entry until it waits or ends."""
        self._now = max(self._now, now)
        self._run = self._run.claimed()
        while self._run.state is State.RUNNING:
            true_decision = decision = advance(self._graph, self._run, self._facts, self._now)
            if self._visible is not None:
                decision = redact_decision(decision, advance(self._graph, self._run, self._visible, self._now))
                self._visible = apply_effects(self._visible, decision.effects, self._now)
            self._run, self._error = true_decision.run, decision.run.error
            if decision.step is not None:
                self._steps.append(decision.step)
            self._effects += decision.effects
            self._facts = apply_effects(self._facts, true_decision.effects, self._now)


def _with_event(facts: Facts, event: Event, arrival: LaterEvent) -> Facts:
    contact = apply_event(facts.contact, event)
    return msgspec.structs.replace(facts, contact=contact, later_events=(*facts.later_events, arrival))
