"""Backtests: all entries of one contact over stored events, by the engine's interpreter on a virtual clock.

Several entries can be open at once, and each sees what the others did: tags, attributes, messages that count towards a
cap, entries that keep others out. The clock jumps to the next stored event or due entry; an event comes before an entry
that is due at the same time, an older entry before a younger one. A backtest begins without earlier entries and assumes
that every external effect succeeds at once.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from workbench.language.actions import UpdateContact, WaitForEvent
from workbench.language.advance import LOOP_LIMIT, LOOP_WINDOW, RequiredFacts, advance, required_facts
from workbench.language.codec import decode
from workbench.language.contact import ContactState, merge_identifiers
from workbench.language.event import Identifiers
from workbench.language.facts import ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.filter import Filter, matches
from workbench.language.graph import Graph
from workbench.language.onchain import log_payload
from workbench.language.run import (
    DEFAULT_POLICY,
    TERMINAL,
    Effect,
    EmailMessage,
    InappMessage,
    RetryPolicy,
    Run,
    State,
    Step,
)
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import Trigger, flat_context

Filters: TypeAlias = tuple[Filter, ...]

MAX_ARRIVALS = 1_000  # the newest later events that an entry looks at, as in the engine
_NO_HISTORY = ContactHistory()


class EventRecord(msgspec.Struct, frozen=True):
    """A stored event. `at`: when the service received it; `sent`: its identifiers; `payload`: JSON text.

    `source` is set for logs that may start an entry of their contact: the logs that are meant (`LogSource.key`). The
    payload of such a record has the parameters in `args`. A log that entries can wait for is a second record without a
    source, under the name that waits use for it.
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
    """One entry of a backtest: the event that started it, its steps and its state.

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
    """An automation, and for each event name that it waits for, the filters of those waits.

    `is_steady`: an event that passes none of these filters on arrival never passes one later, so it wakes no entry.
    """

    automation: SimulatedAutomation
    awaited: dict[str, list[Filters]]
    is_steady: bool


def prepare_backtest(automation: SimulatedAutomation) -> PreparedAutomation:
    """Prepare an automation once for the backtests of many contacts."""
    graph = automation.graph or Graph()
    hours, goal = graph.settings.quiet_hours, graph.settings.goal
    waits: list[tuple[str, Filters]] = [] if goal is None else [(goal.event, goal.filters)]
    moves_quiet_hours = False
    for node in graph.nodes:
        match node.action:
            case WaitForEvent(event=event, filters=filters):
                waits.append((event, filters))
            case UpdateContact(attributes=attributes) if hours is not None:
                moves_quiet_hours = moves_quiet_hours or hours.attribute in attributes
            case _:
                continue
    awaited: dict[str, list[Filters]] = {}
    for name, filters in waits:
        awaited.setdefault(name, []).append(filters)
    # The contact can change between two looks at an event, and with it the verdict. An entry that changes the time zone
    # of its own quiet hours is due at another time if it is woken.
    reads_contact = any(filter_.path.partition(".")[0] == "contact" for _, filters in waits for filter_ in filters)
    return PreparedAutomation(automation, awaited, not reads_contact and not moves_quiet_hours)


def backtest(
    prepared: PreparedAutomation, contact: ContactState, events: Iterable[EventRecord], settings: BacktestSettings
) -> Iterator[SimulatedEntry]:
    """Yield the contact's entries as they end, then those that are still open at the end of the backtest.

    `events` are the contact's, ordered by (at, id), all before the end. Events that the automation does not name may be
    left out.
    """
    return _ContactBacktest(prepared, contact, settings).run(events)


class _ContactBacktest:
    def __init__(self, prepared: PreparedAutomation, contact: ContactState, settings: BacktestSettings) -> None:
        self._prepared = prepared
        self._automation = automation = prepared.automation
        self._trigger: Trigger = automation.trigger
        self._graph = automation.graph
        self._contact = contact
        self._settings = settings
        self._entry_count = 0
        self._open: dict[int, SimulatedEntry] = {}  # by the number of the entry
        self._due: list[tuple[datetime, int]] = []  # a heap; equal times come out by the number of the entry
        self._arrivals: deque[LaterEvent] = deque(maxlen=MAX_ARRIVALS)
        self._sent_at: list[datetime] = []
        self._entered_at: datetime | None = None
        self._recent: deque[datetime] = deque(maxlen=LOOP_LIMIT)

    def run(self, events: Iterable[EventRecord]) -> Iterator[SimulatedEntry]:
        for event in events:
            yield from self._process_due(event.at)
            if self._open and event.source is None and event.name in self._prepared.awaited:
                yield from self._wake_entries(event)
            yield from self._start_entry(event)
        yield from self._process_due(self._settings.until)
        yield from self._open.values()

    def _process_due(self, before: datetime) -> Iterator[SimulatedEntry]:
        while self._due and self._due[0][0] < before:
            at, number = heapq.heappop(self._due)
            entry = self._open.get(number)
            # An entry that an event has woken since left its former due time in the heap.
            if entry is not None and entry.run.due_at == at:
                yield from self._process(number, entry, at)

    def _wake_entries(self, event: EventRecord) -> Iterator[SimulatedEntry]:
        """Advance the entries that wait for an event of this name."""
        arrival = LaterEvent(event.at, event.name, event.sent, decode(event.payload), event.id)
        awaited = self._prepared.awaited[event.name]
        if self._prepared.is_steady and all(awaited):
            context = Facts(arrival.event, arrival.sent, arrival.payload, self._contact).context
            if not any(matches(filters, context) for filters in awaited):
                return
        self._arrivals.append(arrival)
        for number, entry in list(self._open.items()):
            if event.name in entry.awaits:
                yield from self._process(number, entry, event.at)

    def _start_entry(self, event: EventRecord) -> Iterator[SimulatedEntry]:
        """Start an entry if the event passes the trigger."""
        source = self._trigger.source
        if event.source is None or source is None:
            if event.source is not None or not self._trigger.matches_event(event.name):
                return
        elif event.source != source.key or event.sent.wallet != self._contact.identifiers.wallet:
            return
        payload: dict[str, Any] = decode(event.payload)
        if source is not None:
            payload = log_payload(payload, payload.pop("args"), source.abi_event)
        if self._trigger.filters:
            identifiers = merge_identifiers(event.sent, self._contact.identifiers)
            context = flat_context(event.name, self._contact.id, identifiers, payload)
            if not matches(self._trigger.filters, context):
                return
        if not self._open:
            self._arrivals.clear()
        self._entry_count += 1
        entry = SimulatedEntry(event, payload, Run(event.id, self._automation.id))
        yield from self._process(self._entry_count, entry, event.at)
        self._recent.append(event.at)  # after the entry has run, so that its own loop guard does not count it

    def _process(self, number: int, entry: SimulatedEntry, now: datetime) -> Iterator[SimulatedEntry]:
        """Advance an entry until it waits or ends; yield it if it has ended."""
        required = required_facts(self._graph, entry.run)
        self._advance(entry, self._facts(entry, required, now), now)
        run = entry.run
        # A refused entry has no step and does not count for reentry (see `ContactHistory.entered_at`).
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
        records: list[StepRecord] = []
        message_count = 0
        try:
            while run.state is State.RUNNING:
                decision = advance(self._graph, run, facts, now)
                run = decision.run
                if decision.step is not None:
                    records.append(StepRecord(decision.step, decision.effects))
                if decision.effects:
                    facts = apply_effects(facts, decision.effects, now)
                    message_count += sum(isinstance(effect, InappMessage | EmailMessage) for effect in decision.effects)
        except Exception as error:  # noqa: BLE001  as in the engine: a bug in one entry must not stop the others
            reason = f"internal_error: {type(error).__name__}"
            entry.run = entry.run.to(State.DEAD, outcome="internal_error", error=reason)
            return
        entry.run, self._contact = run, facts.contact
        entry.records += records
        self._sent_at += [now] * message_count

    def _facts(self, entry: SimulatedEntry, required: RequiredFacts, now: datetime) -> Facts:
        event, history = entry.event, _NO_HISTORY
        later_events: tuple[LaterEvent, ...] = ()
        if required.entries or required.recent or required.messages:
            messages_at: tuple[datetime, ...] = ()
            if required.messages:
                since, others = now - required.messages, self._settings.other_messages_at
                messages_at = (
                    *others[bisect_right(others, since) : bisect_right(others, now)],
                    *self._sent_at[bisect_right(self._sent_at, since) :],
                )
            history = ContactHistory(
                self._entered_at if required.entries else None,
                bool(self._open) if required.entries else False,
                sum(at > event.at - LOOP_WINDOW for at in self._recent) if required.recent else 0,
                messages_at,
            )
        if required.later_events:
            later_events = tuple(
                arrival
                for arrival in self._arrivals
                if arrival.event in required.later_events
                and (required.since is None or arrival.at > required.since)
                and (arrival.at, arrival.id or "") > (event.at, event.id)
            )
        return Facts(
            event.name,
            event.sent,
            entry.payload,
            self._contact,
            retries=self._settings.retries,
            history=history,
            later_events=later_events,
        )
