"""Simulations and backtests: the engine's interpreter on a virtual clock, without performing anything.

`simulate` follows one entry of a described contact and described later events, which are validated like real ones.
`backtest` follows all entries of one contact over stored events. Several entries can be open at once there, and each
sees what the others did: tags, attributes, messages that count towards a cap, entries that keep others out. The clock
jumps to the next stored event or due entry; an event comes before an entry that is due at the same time, an older entry
before a younger one. A backtest begins without earlier entries, and takes every external effect to succeed at once.

A reader without access to personal data gets a redacted trace. Decisions are made on the true facts; beside each, the
same decision is made on the contact as the reader may see it, and messages, attributes, compared values and reasons
come from there. Where the two differ too much, these are replaced by `UNSEEN`. `redact_texts` does the same for stored
messages: a text whose template reads an address is replaced by the template, because a rendered text can contain the
address in any form.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from workbench.language.actions import (
    MAX_WAIT,
    Action,
    SendEmail,
    SendInapp,
    SendWebhook,
    UpdateContact,
    WaitForEvent,
    templates_in,
)
from workbench.language.advance import LOOP_LIMIT, LOOP_WINDOW, RequiredFacts, advance, required_facts
from workbench.language.codec import Json, decode, encode, normalise, text_problem
from workbench.language.contact import ContactState, apply_event, merge_identifiers
from workbench.language.decision import Decision
from workbench.language.event import LOG_NAME, Event, Identifiers, mask_email, normalise_email, read_event
from workbench.language.facts import ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.filter import Filter, Verdict, explain, matches
from workbench.language.graph import Graph
from workbench.language.onchain import log_payload
from workbench.language.problem import Problem, Problems
from workbench.language.run import (
    CHANNELS,
    DEFAULT_POLICY,
    TERMINAL,
    ContactUpdated,
    Effect,
    EmailMessage,
    InappMessage,
    Message,
    RetryPolicy,
    Run,
    State,
    Step,
    TagAdded,
    TagRemoved,
    WebhookMessage,
)
from workbench.language.template import TemplateError, compile_template
from workbench.language.trigger import Trigger, flat_context

SIMULATED_ID = "00000000-0000-8000-8000-000000000000"
MAX_LATER = 100

_TEXTS = ("id", "email", "walletAddress", "externalId")


class ScheduledEvent(msgspec.Struct, frozen=True):
    """An event of the same contact, this long after the one that starts the entry."""

    after: timedelta
    event: Event


def contact_from(value: Mapping[str, Any] | None) -> ContactState:
    """Return a described contact (see `read_contact`); raise ValueError with its problems."""
    contact = read_contact(value)
    if isinstance(contact, ContactState):
        return contact
    raise ValueError("; ".join(map(str, contact)))


def read_contact(value: Any, field: str = "contact") -> ContactState | Problems:
    """Return a described contact: `id, email, walletAddress, externalId, attributes, tags, segments, optedOut`, all
    optional.

    Values are normalised as the service would store them: the wallet in lower case, the email in its normal form.
    """
    if value is None:
        return ContactState(SIMULATED_ID)
    if not isinstance(value, Mapping):
        return (Problem(field, "must be an object"),)
    problems: list[Problem] = []
    texts = {name: _text(value.get(name), f"{field}.{name}", problems) for name in _TEXTS}
    email = texts["email"] and normalise_email(texts["email"])
    if texts["email"] and email is None:
        problems.append(Problem(f"{field}.email", "not a valid email address"))
    wallet = texts["walletAddress"]
    contact = ContactState(
        texts["id"] or SIMULATED_ID,
        Identifiers(wallet and wallet.lower(), email, texts["externalId"], wallet),
        _attributes(value.get("attributes"), f"{field}.attributes", problems),
        _words(value.get("tags"), f"{field}.tags", problems),
        _words(value.get("segments"), f"{field}.segments", problems),
        _channels(value.get("optedOut"), f"{field}.optedOut", problems),
    )
    return tuple(problems) if problems else contact


def read_scheduled_events(value: Any, now_us: int, field: str, problems: list[Problem]) -> tuple[ScheduledEvent, ...]:
    """Return the later events in a decoded JSON value; add what is wrong with them to `problems`.

    It is an array of `{afterSeconds, event}`; each event is validated at the time of its arrival.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LATER:
        problems.append(Problem(field, f"must be an array of at most {MAX_LATER} later events"))
        return ()
    found = [_later(each, now_us, f"{field}[{index}]", problems) for index, each in enumerate(value)]
    return tuple(each for each in found if each is not None)


def _later(value: Any, now_us: int, field: str, problems: list[Problem]) -> ScheduledEvent | None:
    if not isinstance(value, dict) or not isinstance(value.get("event"), dict):
        problems.append(Problem(f"{field}.event", "must be an event"))
        return None
    seconds, most = value.get("afterSeconds"), MAX_WAIT.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 < seconds <= most:
        problems.append(Problem(f"{field}.afterSeconds", f"must be a number of seconds up to {most:,.0f} (366 days)"))
        return None
    apply_effects = timedelta(microseconds=int(seconds * 1_000_000))
    event = _log(value["event"]) or read_event(
        encode(value["event"]), now_us + apply_effects // timedelta(microseconds=1)
    )
    if isinstance(event, Event):
        return ScheduledEvent(apply_effects, event)
    problems.extend(Problem(f"{field}.event.{each.field}".removesuffix("."), each.reason) for each in event)
    return None


def _log(described: dict[str, Any]) -> Event | None:
    """Return a contract log by the name that waits use for it, with its parameters as the payload; None for custom
    events.
    """
    name, payload = described.get("event"), described.get("payload", {})
    if not isinstance(name, str) or not LOG_NAME.fullmatch(name) or not isinstance(payload, dict):
        return None
    return Event(name.lower(), Identifiers(), payload=encode(payload), on_chain=True)


def _text(value: Any, field: str, problems: list[Problem]) -> str | None:
    if value is not None and not isinstance(value, str):
        problems.append(Problem(field, "must be a string"))
        return None
    if value and (reason := text_problem(value)):
        problems.append(Problem(field, reason))
    return value or None


def _attributes(value: Any, field: str, problems: list[Problem]) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(field, "must be an object"))
        return {}
    try:
        attributes: dict[str, Json] = normalise(value)
    except (TypeError, ValueError):
        problems.append(Problem(field, "must hold strings, numbers and booleans"))
        return {}
    return attributes


def _channels(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    channels = _words(value, field, problems)
    if not set(channels) <= set(CHANNELS):
        problems.append(Problem(field, f"must hold some of {', '.join(CHANNELS)}"))
    return channels


def _words(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return tuple(value)
    problems.append(Problem(field, "must be an array of strings"))
    return ()


UNSEEN = "•••"


def seen(decision: Decision, shown: Decision) -> Decision:
    """Return a decision without personal data; `shown`: the decision of the same run on the facts that the reader may
    see.
    """
    step = None if decision.step is None else _step(decision.step, shown.step)
    error = decision.run.error
    if step is not None and step.outcome == "failed" and error is not None:
        error = f"{step.detail['cause']}: {step.detail['error']}"
    return Decision(replace(decision.run, error=error), step, _effects(decision.effects, shown.effects))


def seen_verdicts(verdicts: Sequence[Verdict], shown: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts with the values that the reader may see."""
    return tuple(replace(true, actual=told.actual) for true, told in zip(verdicts, shown, strict=True))


def _step(step: Step, shown: Step | None) -> Step:
    if "verdicts" in step.detail:
        told = [] if shown is None else shown.detail.get("verdicts", [])
        values = [each["actual"] for each in told] or [UNSEEN] * len(step.detail["verdicts"])
        verdicts = [{**true, "actual": value} for true, value in zip(step.detail["verdicts"], values, strict=True)]
        return replace(step, detail={**step.detail, "verdicts": verdicts})
    if step.outcome == "failed":
        return replace(step, detail=_failure(step.detail, shown))
    return step


def _failure(detail: dict[str, Any], shown: Step | None) -> dict[str, Any]:
    alike = shown is not None and shown.outcome == "failed" and shown.detail["cause"] == detail["cause"]
    return shown.detail if shown is not None and alike else {**detail, "error": UNSEEN}


def _effects(effects: tuple[Effect, ...], shown: tuple[Effect, ...]) -> tuple[Effect, ...]:
    return shown if list(map(type, effects)) == list(map(type, shown)) else tuple(map(_unseen, effects))


def _unseen(effect: Effect) -> Effect:
    """Return an effect without values of the contact."""
    match effect:
        case InappMessage():
            return replace(effect, title=UNSEEN, body=UNSEEN)
        case EmailMessage():
            return replace(effect, email=UNSEEN, subject=UNSEEN, body=UNSEEN)
        case WebhookMessage():
            return replace(effect, url=UNSEEN, body=UNSEEN)
        case ContactUpdated(attributes=attributes):
            return ContactUpdated(dict.fromkeys(attributes, UNSEEN))
        case _:
            return effect


class SimulatedAutomation(msgspec.Struct, frozen=True):
    """The automation to simulate. `graph` None: no version is published. `id` decides the branches of splits."""

    trigger: Trigger
    graph: Graph | None
    id: str = SIMULATED_ID


class SimulationInput(msgspec.Struct, frozen=True):
    """The circumstances of a simulation: the history of the contact, and its later events.

    `until`: the moment at which to look; None: when the entry has ended. `visible_contact`: the contact as the reader of the
    trace may see it; None: as it is.
    """

    history: ContactHistory = ContactHistory()
    later: tuple[ScheduledEvent, ...] = ()
    retries: RetryPolicy = DEFAULT_POLICY
    entry_id: str = SIMULATED_ID
    until: datetime | None = None
    visible_contact: ContactState | None = None


NO_INPUT = SimulationInput()
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


class MissedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event with the awaited name that did not pass the filters of the wait."""

    node_id: str
    event: str
    at: datetime
    verdicts: tuple[Verdict, ...]


class Trace(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a simulation: `steps` in order, in the format of an entry's history.

    `matched` False: the trigger does not fire, `verdicts` say why. `state` and `outcome` are those the entry would end
    with.
    `tags`, `removed_tags` and `attributes` are what the steps would write to the contact, in the order in which they
    do.
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
    missed: tuple[MissedEvent, ...] = ()


def simulate(
    automation: SimulatedAutomation,
    event: Event,
    contact: ContactState,
    now: datetime,
    given: SimulationInput = NO_INPUT,
) -> Trace:
    """Return the trace of `event` from `contact` at `now`. Waits and retries pass at once, on a virtual clock.

    `now` is between `EARLIEST` and `LATEST`: a thousand waits of a year after it are still dates.
    """
    facts = _facts(event, contact, given)
    shown = None if given.visible_contact is None else _facts(event, given.visible_contact, given)
    verdicts = _verdicts(automation.trigger, facts)
    told = verdicts if shown is None else seen_verdicts(verdicts, _verdicts(automation.trigger, shown))
    named = automation.trigger.matches_event(event.name, on_chain=event.on_chain)
    if not named or not all(verdict.passed for verdict in verdicts):
        return Trace(False, told, name_matched=named)
    life = _Life(_graph_for(contact, automation.graph), Run(given.entry_id, automation.id), facts, shown, now)
    life.live(sorted(given.later, key=lambda each: each.after), given.until)
    return life.trace(told)


def _facts(event: Event, contact: ContactState, given: SimulationInput) -> Facts:
    payload: dict[str, Any] = decode(event.payload)
    contact = apply_event(contact, event)
    return Facts(event.name, event.identifiers, payload, contact, retries=given.retries, history=given.history)


def _verdicts(trigger: Trigger, facts: Facts) -> tuple[Verdict, ...]:
    who = merge_identifiers(facts.sent, facts.contact.identifiers)
    return explain(trigger.filters, flat_context(facts.event, facts.contact.id, who, facts.payload))


def _graph_for(contact: ContactState, graph: Graph | None) -> Graph | None:
    """Return the graph for a contact; a contact without an id of its own is never held out, because its bucket means
    nothing.
    """
    return without_holdout(graph) if graph is not None and contact.id == SIMULATED_ID else graph


def without_holdout(graph: Graph) -> Graph:
    """Return the graph without its holdout."""
    if not graph.settings.holdout:
        return graph
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, holdout=0))


class _Life:
    """One simulated entry. `shown`: the facts that the reader may see, or None if the reader may see all."""

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
        self._missed: list[MissedEvent] = []

    def live(self, later: Iterable[ScheduledEvent], until: datetime | None) -> None:
        """Advance the clock from event to event until a given time or the end of the entry."""
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
        """Return the trace so far."""
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

    def _meet(self, later: ScheduledEvent) -> None:
        """Receive an event: it updates the contact, and wakes the entry if it waits for this name."""
        event, at = later.event, self._began_at + later.after
        arrival = LaterEvent(at, event.name, event.identifiers, decode(event.payload))
        self._facts = _met(self._facts, event, arrival)
        self._shown = None if self._shown is None else _met(self._shown, event, arrival)
        if self._run.state is State.WAITING and event.name in required_facts(self._graph, self._run).later_events:
            self._claim(at)
            self._note_missed(arrival)

    def _note_missed(self, arrival: LaterEvent) -> None:
        """Record why an event with the awaited name did not end the wait."""
        node = None if self._graph is None else self._graph.by_id.get(self._run.node_id or "")
        if self._run.state is not State.WAITING or node is None or not isinstance(node.action, WaitForEvent):
            return
        verdicts = explain(node.action.filters, self._facts.context_of(arrival))
        if node.action.event == arrival.event and not all(each.passed for each in verdicts):
            if self._shown is not None:
                verdicts = seen_verdicts(verdicts, explain(node.action.filters, self._shown.context_of(arrival)))
            self._missed.append(MissedEvent(node.id, arrival.event, arrival.at, verdicts))

    def _claim(self, now: datetime) -> None:
        """Advance the entry until it waits or ends."""
        self._now = max(self._now, now)
        self._run = self._run.claimed()
        while self._run.state is State.RUNNING:
            decision = advance(self._graph, self._run, self._facts, self._now)
            told = self._told(decision)
            self._run, self._error = decision.run, told.run.error
            if told.step is not None:
                self._steps.append(told.step)
            if decision.effects:
                self._facts = apply_effects(self._facts, decision.effects, self._now)
                self._shown = None if self._shown is None else apply_effects(self._shown, told.effects, self._now)
                for effect in told.effects:
                    self._note(effect)

    def _told(self, decision: Decision) -> Decision:
        """Return a decision as the reader may see it."""
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


def _met(facts: Facts, event: Event, arrival: LaterEvent) -> Facts:
    return msgspec.structs.replace(
        facts, contact=apply_event(facts.contact, event), later_events=(*facts.later_events, arrival)
    )


_GOING = frozenset({State.PENDING, State.WAITING, State.RETRYING})


Filters: TypeAlias = tuple[Filter, ...]

MOST_ARRIVALS = 1_000  # the newest that an entry looks at, as in the engine


class EventRecord(msgspec.Struct, frozen=True):
    """A stored event. `at`: when the service received it; `sent`: its identifiers; `payload`: JSON text.

    `source`: of a log that may start an entry of its contact, which logs are meant (`OnChain.key`); its parameters are
    in `args` of the payload then. As something to wait for, a log is an event of its own, without a source, by the name
    that waits have for it.
    """

    id: str
    name: str
    at: datetime
    sent: Identifiers
    payload: bytes
    source: str | None = None


class StepRecord(msgspec.Struct, frozen=True):
    """A step and its effects."""

    step: Step
    effects: tuple[Effect, ...]


class SimulatedEntry(msgspec.Struct):
    """One entry of a backtest, with the id of the event that started it, its steps and its state.

    An entry that is still open at the end of the backtest has a state that is not terminal.
    """

    event: EventRecord
    payload: dict[str, Any]
    run: Run
    records: list[StepRecord] = []
    awaits: frozenset[str] = frozenset()


class BacktestSettings(msgspec.Struct, frozen=True):
    """The end of the backtest, the retry policy, and the times of messages from other automations, in order."""

    until: datetime
    retries: RetryPolicy = DEFAULT_POLICY
    other_messages_at: Sequence[datetime] = ()


class PreparedAutomation(msgspec.Struct, frozen=True):
    """An automation, and for each event name it waits for, the filters of those waits.

    `is_steady`: an event that passes none of these filters when it comes never does, and waking somebody for it changes
    nothing. That holds unless a filter looks at the contact, or the automation itself moves the contact's quiet hours.
    """

    automation: SimulatedAutomation
    awaited: dict[str, list[Filters]]
    is_steady: bool


def prepare_backtest(automation: SimulatedAutomation) -> PreparedAutomation:
    """Prepare an automation once for the backtests of many contacts."""
    graph = automation.graph or Graph()
    awaited: dict[str, list[Filters]] = {}
    for name, filters in _awaited(graph):
        awaited.setdefault(name, []).append(filters)
    looks = any(
        each.path.partition(".")[0] == "contact" for all_of in awaited.values() for one in all_of for each in one
    )
    return PreparedAutomation(automation, awaited, not looks and not _moves_quiet_hours(graph))


def backtest(
    prepared: PreparedAutomation, contact: ContactState, events: Iterable[EventRecord], around: BacktestSettings
) -> Iterator[SimulatedEntry]:
    """Yield the contact's entries as they end, then those that are still open at the end of the backtest.

    `events` are the contact's, by (at, id), all before the end; those that the automation does not know by name may be
    missing.
    """
    return _Course(prepared, contact, around).run(events)


def _awaited(graph: Graph) -> Iterator[tuple[str, Filters]]:
    if graph.settings.goal is not None:
        yield graph.settings.goal.event, graph.settings.goal.filters
    for node in graph.nodes:
        if isinstance(node.action, WaitForEvent):
            yield node.action.event, node.action.filters


def _moves_quiet_hours(graph: Graph) -> bool:
    hours = graph.settings.quiet_hours
    return hours is not None and any(
        isinstance(node.action, UpdateContact) and hours.attribute in node.action.attributes for node in graph.nodes
    )


class _Course:
    """The backtest of one contact."""

    def __init__(self, prepared: PreparedAutomation, contact: ContactState, around: BacktestSettings) -> None:
        self._prepared = prepared
        self._automation = automation = prepared.automation
        self._trigger: Trigger = automation.trigger
        self._graph = automation.graph
        self._contact = contact
        self._around = around
        self._begun = 0
        self._open: dict[int, SimulatedEntry] = {}
        self._due: list[tuple[datetime, int]] = []
        self._arrivals: deque[LaterEvent] = deque(maxlen=MOST_ARRIVALS)
        self._sent_at: list[datetime] = []
        self._entered_at: datetime | None = None
        self._recent: deque[datetime] = deque(maxlen=LOOP_LIMIT)

    def run(self, events: Iterable[EventRecord]) -> Iterator[SimulatedEntry]:
        for event in events:
            yield from self._pass(event.at)
            yield from self._meet(event)
        yield from self._pass(self._around.until)
        yield from self._open.values()

    def _pass(self, until: datetime) -> Iterator[SimulatedEntry]:
        """Advance the clock to each entry that is due before a given time."""
        while self._due and self._due[0][0] < until:
            at, number = heapq.heappop(self._due)
            entry = self._open.get(number)
            if entry is not None and entry.run.due_at == at:  # it was not woken since
                yield from self._take(number, entry, at)

    def _meet(self, event: EventRecord) -> Iterator[SimulatedEntry]:
        """Receive an event: it wakes the entries that wait for it, and may start one."""
        if self._open and event.source is None and event.name in self._prepared.awaited:
            yield from self._arrive(event)
        if self._is_meant(event):
            payload = self._payload(event)
            if self._fires(event, payload):
                yield from self._begin(event, payload)

    def _is_meant(self, event: EventRecord) -> bool:
        source = self._trigger.source
        if event.source is None or source is None:
            return event.source is None and self._trigger.matches_event(event.name)
        return event.source == source.key and event.sent.wallet == self._contact.identifiers.wallet

    def _payload(self, event: EventRecord) -> dict[str, Any]:
        payload: dict[str, Any] = decode(event.payload)
        source = self._trigger.source
        return payload if source is None else log_payload(payload, payload.pop("args"), source.abi_event)

    def _arrive(self, event: EventRecord) -> Iterator[SimulatedEntry]:
        arrival = LaterEvent(event.at, event.name, event.sent, decode(event.payload), event.id)
        if self._prepared.is_steady and not self._passes(arrival):
            return
        self._arrivals.append(arrival)
        for number, entry in list(self._open.items()):
            if event.name in entry.awaits:
                yield from self._take(number, entry, event.at)

    def _passes(self, arrival: LaterEvent) -> bool:
        """Return whether an event passes the filters of any wait for its name."""
        asked = self._prepared.awaited[arrival.event]
        if not all(asked):
            return True
        context = Facts(arrival.event, arrival.sent, arrival.payload, self._contact).context
        return any(matches(filters, context) for filters in asked)

    def _fires(self, event: EventRecord, payload: dict[str, Any]) -> bool:
        if not self._trigger.filters:
            return True
        who = merge_identifiers(event.sent, self._contact.identifiers)
        return matches(self._trigger.filters, flat_context(event.name, self._contact.id, who, payload))

    def _begin(self, event: EventRecord, payload: dict[str, Any]) -> Iterator[SimulatedEntry]:
        number = self._begun = self._begun + 1
        entry = SimulatedEntry(event, payload, Run(event.id, self._automation.id))
        if not self._open:
            self._arrivals.clear()
        yield from self._take(number, entry, event.at)
        self._recent.append(event.at)

    def _take(self, number: int, entry: SimulatedEntry, now: datetime) -> Iterator[SimulatedEntry]:
        """Advance an entry until it waits or ends; yield it if it has ended."""
        asked = required_facts(self._graph, entry.run)
        self._advance(entry, self._facts(entry, asked, now), now)
        run = entry.run
        if run.step or run.state is State.DEAD or run.state not in TERMINAL:
            self._entered_at = max(self._entered_at or entry.event.at, entry.event.at)
        if run.state in TERMINAL:
            self._open.pop(number, None)
            yield entry
            return
        assert run.due_at is not None, "a waiting or retrying run has a due time"
        entry.awaits = required_facts(self._graph, run).later_events if run.state is State.WAITING else frozenset()
        self._open[number] = entry
        heapq.heappush(self._due, (run.due_at, number))

    def _advance(self, entry: SimulatedEntry, facts: Facts, now: datetime) -> None:
        run = entry.run = entry.run.claimed()
        told: list[StepRecord] = []
        messages = 0
        try:
            while run.state is State.RUNNING:
                decision = advance(self._graph, run, facts, now)
                run = decision.run
                if decision.step is not None:
                    told.append(StepRecord(decision.step, decision.effects))
                if decision.effects:
                    facts = apply_effects(facts, decision.effects, now)
                    messages += sum(isinstance(each, _TO_PEOPLE) for each in decision.effects)
        except Exception as error:  # noqa: BLE001  as in the engine: a bug in one entry must not stop the others
            why = f"internal_error: {type(error).__name__}"
            entry.run = entry.run.to(State.DEAD, outcome="internal_error", error=why)
            return
        entry.run, self._contact = run, facts.contact
        entry.records += told
        self._sent_at += [now] * messages

    def _facts(self, entry: SimulatedEntry, asked: RequiredFacts, now: datetime) -> Facts:
        event = entry.event
        return Facts(
            event.name,
            event.sent,
            entry.payload,
            self._contact,
            retries=self._around.retries,
            history=self._past(event, asked, now),
            later_events=tuple(self._arrivals_for(event, asked)) if asked.later_events else (),
        )

    def _past(self, event: EventRecord, asked: RequiredFacts, now: datetime) -> ContactHistory:
        if not (asked.entries or asked.recent or asked.messages):
            return _NO_PAST
        return ContactHistory(
            self._entered_at if asked.entries else None,
            bool(self._open) if asked.entries else False,
            sum(at > event.at - LOOP_WINDOW for at in self._recent) if asked.recent else 0,
            self._messages_since(now - asked.messages, now) if asked.messages else (),
        )

    def _messages_since(self, since: datetime, now: datetime) -> tuple[datetime, ...]:
        others = self._around.other_messages_at
        return (
            *others[bisect_right(others, since) : bisect_right(others, now)],
            *self._sent_at[bisect_right(self._sent_at, since) :],
        )

    def _arrivals_for(self, event: EventRecord, asked: RequiredFacts) -> Iterator[LaterEvent]:
        """Yield the events that came after the one that started the entry, of the names that it needs now."""
        since = asked.since
        for each in self._arrivals:
            if each.event in asked.later_events and (since is None or each.at > since) and _is_later(each, event):
                yield each


def _is_later(arrival: LaterEvent, event: EventRecord) -> bool:
    return (arrival.at, arrival.id or "") > (event.at, event.id)


_NO_PAST = ContactHistory()
_TO_PEOPLE = (InappMessage, EmailMessage)


_ADDRESSES = frozenset({"email", "contact", "contact.email"})


class MessageTexts(Struct, frozen=True):
    """The texts of a message: `subject` is the title of an in-app message, `url` belongs to a webhook."""

    subject: str | None
    body: str | None
    url: str | None = None


def redact_texts(action: Action | None, texts: MessageTexts) -> MessageTexts:
    """Return the texts of a message that this action sent, without addresses; all texts are hidden if the action is
    unknown.
    """
    match action:
        case SendInapp(title=subject, body=body) | SendEmail(subject=subject, body=body):
            return replace(texts, subject=_written(subject, texts.subject), body=_written(body, texts.body))
        case SendWebhook(url=url, body=None):
            return replace(texts, url=_written(url, texts.url), body=_event(texts.body))
        case SendWebhook(url=url, body=str() as body):
            return replace(texts, url=_written(url, texts.url), body=_written(body, texts.body))
        case SendWebhook(url=url, body=body):
            as_written = encode(body).decode()
            hides = any(map(_tells, templates_in(replace(action, url="-"))))
            return replace(texts, url=_written(url, texts.url), body=as_written if hides else texts.body)
        case _:
            return MessageTexts(*(None if each is None else UNSEEN for each in (texts.subject, texts.body, texts.url)))


def _written(template: str, text: str | None) -> str | None:
    """Return the text, or its template if that reads an address; None stays None: never stored, or erased."""
    return template if text is not None and _tells(template) else text


def _tells(template: str) -> bool:
    try:
        return not _ADDRESSES.isdisjoint(compile_template(template).paths)
    except TemplateError:
        return True


def _event(text: str | None) -> str | None:
    """Return the default body of a webhook with its address masked."""
    if text is None:
        return None
    event = decode(text.encode())
    data = event["data"]
    if "email" in data:
        data = {**data, "email": mask_email(data["email"])}
    return encode({**event, "data": data}).decode()
