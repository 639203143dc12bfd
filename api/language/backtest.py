"""What an automation would have done about stored events: all entries of one contact, in the order of time. Pure.

A simulation follows one entry. Here several of the same contact may be under way at once, and see what the others did to it: tags,
attributes, messages that count towards a cap, entries that keep others out. The clock jumps from one moment at which something
happens to the next: an event that is stored, an entry that is due. An event comes before what is due at the same moment; older
entries come before younger ones.

What stands at the beginning: nobody is in, nobody was in before, and the contact is as it is given. An effect outside is taken
to succeed at once.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from api.language.action import UpdateContact, WaitForEvent
from api.language.advance import LOOP_LIMIT, LOOP_WINDOW, Needs, advance, needs
from api.language.codec import decode
from api.language.contact import Contact, identifiers_of
from api.language.effect import Effect, EmailMessage, InappMessage
from api.language.event import Identifiers
from api.language.facts import Arrival, Facts, Past, after
from api.language.filter import Filter, matches
from api.language.graph import Graph
from api.language.onchain import payload_of
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.run import TERMINAL, Run, State, Step
from api.language.simulate import Automation
from api.language.trigger import Trigger, flat_context

Filters: TypeAlias = tuple[Filter, ...]

MOST_ARRIVALS = 1_000  # the newest that an entry looks at, as in the engine


class Stored(msgspec.Struct, frozen=True):
    """An event as it was stored. `at`: when the service received it; `sent`: what it carried; `payload`: JSON text.

    `source`: of a log that may start an entry of its contact, which logs are meant (`OnChain.key`); its parameters are in `args` of the
    payload then. As something to wait for, a log is an event of its own, without a source, by the name that waits have for it.
    """

    id: str
    name: str
    at: datetime
    sent: Identifiers
    payload: bytes
    source: str | None = None


class Told(msgspec.Struct, frozen=True):
    """A step, and what it did."""

    step: Step
    effects: tuple[Effect, ...]


class Entry(msgspec.Struct):
    """One entry, by the id of the event that started it: what was told of it, and where it stands.

    It stands still in a state that is not final when the time is over.
    """

    event: Stored
    payload: dict[str, Any]
    run: Run
    told: list[Told] = []
    awaits: frozenset[str] = frozenset()


class Circumstances(msgspec.Struct, frozen=True):
    """What holds beside it: when the time is over, how failures are retried, and when others sent the contact messages (in order)."""

    until: datetime
    retries: RetryPolicy = DEFAULT_POLICY
    others_at: Sequence[datetime] = ()


class Prepared(msgspec.Struct, frozen=True):
    """An automation, and which events it waits for: of each name, the filters of those who do.

    `is_steady`: an event that passes none of these filters when it comes never does, and waking somebody for it changes nothing. That
    holds unless a filter looks at the contact, or the automation itself moves the contact's quiet hours.
    """

    automation: Automation
    awaited: dict[str, list[Filters]]
    is_steady: bool


def prepare(automation: Automation) -> Prepared:
    """Return an automation ready for the backtests of many contacts."""
    graph = automation.graph or Graph()
    awaited: dict[str, list[Filters]] = {}
    for name, filters in _awaited(graph):
        awaited.setdefault(name, []).append(filters)
    looks = any(
        each.path.partition(".")[0] == "contact" for all_of in awaited.values() for one in all_of for each in one
    )
    return Prepared(automation, awaited, not looks and not _moves_quiet_hours(graph))


def backtest(prepared: Prepared, contact: Contact, events: Iterable[Stored], around: Circumstances) -> Iterator[Entry]:
    """Yield the contact's entries: as they end, then those that had not ended when the time was over.

    `events` are the contact's, by (at, id), all before the end; those that the automation does not know by name may be missing.
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
    """What happens to one contact."""

    def __init__(self, prepared: Prepared, contact: Contact, around: Circumstances) -> None:
        self._prepared = prepared
        self._automation = automation = prepared.automation
        self._trigger: Trigger = automation.trigger
        self._graph = automation.graph
        self._contact = contact
        self._around = around
        self._begun = 0
        self._open: dict[int, Entry] = {}
        self._due: list[tuple[datetime, int]] = []
        self._arrivals: deque[Arrival] = deque(maxlen=MOST_ARRIVALS)
        self._sent_at: list[datetime] = []
        self._entered_at: datetime | None = None
        self._recent: deque[datetime] = deque(maxlen=LOOP_LIMIT)

    def run(self, events: Iterable[Stored]) -> Iterator[Entry]:
        for event in events:
            yield from self._pass(event.at)
            yield from self._meet(event)
        yield from self._pass(self._around.until)
        yield from self._open.values()

    def _pass(self, until: datetime) -> Iterator[Entry]:
        """Let the clock go on to what is due before a moment."""
        while self._due and self._due[0][0] < until:
            at, number = heapq.heappop(self._due)
            entry = self._open.get(number)
            if entry is not None and entry.run.due_at == at:  # it was not woken since
                yield from self._take(number, entry, at)

    def _meet(self, event: Stored) -> Iterator[Entry]:
        """Let an event come: it wakes who waits for it, and may start an entry."""
        if self._open and event.source is None and event.name in self._prepared.awaited:
            yield from self._arrive(event)
        if self._is_meant(event):
            payload = self._payload(event)
            if self._fires(event, payload):
                yield from self._begin(event, payload)

    def _is_meant(self, event: Stored) -> bool:
        source = self._trigger.source
        if event.source is None or source is None:
            return event.source is None and self._trigger.names_event(event.name)
        return event.source == source.key and event.sent.wallet == self._contact.identifiers.wallet

    def _payload(self, event: Stored) -> dict[str, Any]:
        payload: dict[str, Any] = decode(event.payload)
        source = self._trigger.source
        return payload if source is None else payload_of(payload, payload.pop("args"), source.declared)

    def _arrive(self, event: Stored) -> Iterator[Entry]:
        arrival = Arrival(event.at, event.name, event.sent, decode(event.payload), event.id)
        if self._prepared.is_steady and not self._passes(arrival):
            return
        self._arrivals.append(arrival)
        for number, entry in list(self._open.items()):
            if event.name in entry.awaits:
                yield from self._take(number, entry, event.at)

    def _passes(self, arrival: Arrival) -> bool:
        """Return whether an event passes the filters of anybody who may wait for it."""
        asked = self._prepared.awaited[arrival.event]
        if not all(asked):
            return True
        context = Facts(arrival.event, arrival.sent, arrival.payload, self._contact).context
        return any(matches(filters, context) for filters in asked)

    def _fires(self, event: Stored, payload: dict[str, Any]) -> bool:
        if not self._trigger.filters:
            return True
        who = identifiers_of(event.sent, self._contact.identifiers)
        return matches(self._trigger.filters, flat_context(event.name, self._contact.id, who, payload))

    def _begin(self, event: Stored, payload: dict[str, Any]) -> Iterator[Entry]:
        number = self._begun = self._begun + 1
        entry = Entry(event, payload, Run(event.id, self._automation.id))
        if not self._open:
            self._arrivals.clear()
        yield from self._take(number, entry, event.at)
        self._recent.append(event.at)

    def _take(self, number: int, entry: Entry, now: datetime) -> Iterator[Entry]:
        """Take an entry as far as it goes at one moment; yield it when it has ended."""
        asked = needs(self._graph, entry.run)
        self._advance(entry, self._facts(entry, asked, now), now)
        run = entry.run
        if run.step or run.state is State.DEAD or run.state not in TERMINAL:
            self._entered_at = max(self._entered_at or entry.event.at, entry.event.at)
        if run.state in TERMINAL:
            self._open.pop(number, None)
            yield entry
            return
        assert run.due_at is not None, "who waits or tries again does so until a moment"
        entry.awaits = needs(self._graph, run).arrivals if run.state is State.WAITING else frozenset()
        self._open[number] = entry
        heapq.heappush(self._due, (run.due_at, number))

    def _advance(self, entry: Entry, facts: Facts, now: datetime) -> None:
        run = entry.run = entry.run.claimed()
        told: list[Told] = []
        messages = 0
        try:
            while run.state is State.RUNNING:
                decision = advance(self._graph, run, facts, now)
                run = decision.run
                if decision.step is not None:
                    told.append(Told(decision.step, decision.effects))
                if decision.effects:
                    facts = after(facts, decision.effects, now)
                    messages += sum(isinstance(each, _TO_PEOPLE) for each in decision.effects)
        except Exception as error:  # noqa: BLE001  the edge of one entry, as in the engine: a bug it wakes must not stop the others
            why = f"internal_error: {type(error).__name__}"
            entry.run = entry.run.to(State.DEAD, outcome="internal_error", error=why)
            return
        entry.run, self._contact = run, facts.contact
        entry.told += told
        self._sent_at += [now] * messages

    def _facts(self, entry: Entry, asked: Needs, now: datetime) -> Facts:
        event = entry.event
        return Facts(
            event.name,
            event.sent,
            entry.payload,
            self._contact,
            retries=self._around.retries,
            past=self._past(event, asked, now),
            arrivals=tuple(self._arrivals_for(event, asked)) if asked.arrivals else (),
        )

    def _past(self, event: Stored, asked: Needs, now: datetime) -> Past:
        if not (asked.entries or asked.recent or asked.messages):
            return _NO_PAST
        return Past(
            self._entered_at if asked.entries else None,
            bool(self._open) if asked.entries else False,
            sum(at > event.at - LOOP_WINDOW for at in self._recent) if asked.recent else 0,
            self._messages_since(now - asked.messages, now) if asked.messages else (),
        )

    def _messages_since(self, since: datetime, now: datetime) -> tuple[datetime, ...]:
        others = self._around.others_at
        return (
            *others[bisect_right(others, since) : bisect_right(others, now)],
            *self._sent_at[bisect_right(self._sent_at, since) :],
        )

    def _arrivals_for(self, event: Stored, asked: Needs) -> Iterator[Arrival]:
        """Yield the events that came after the one that started the entry, of the names that it looks at now."""
        since = asked.since
        for each in self._arrivals:
            if each.event in asked.arrivals and (since is None or each.at > since) and _is_later(each, event):
                yield each


def _is_later(arrival: Arrival, event: Stored) -> bool:
    return (arrival.at, arrival.id or "") > (event.at, event.id)


_NO_PAST = Past()
_TO_PEOPLE = (InappMessage, EmailMessage)
