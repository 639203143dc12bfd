"""The timeline of one contact: its events in order, and the entries that they start, wake and end.

`simulate` plays one event and the later events that its caller describes; `backtest` plays stored events. The clock
jumps to the next event or due entry. An event counts for the entries that are due at its time. These, and those that it
wakes, come in the order in which they began, and the entry that it starts comes after them. Several entries can be open
at once, and each sees what the others did: tags, attributes, messages that count towards a cap, entries that keep
others out. Every external effect is assumed to succeed at once, unless its failure was recorded.

Changes that something else made to the contact take effect at their moments, or with the event that they belong to; so
do changes of what is live (`LiveChange`) and moves of entries to another version (`PastMove`).
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from workbench.language.actions import Collect
from workbench.language.advance import (
    LOOP_LIMIT,
    LOOP_WINDOW,
    RequiredFacts,
    advance,
    decide_failure,
    required_facts,
    walk,
)
from workbench.language.channel import DEFAULT_POLICY, EmailMessage, ExternalMessage, RetryPolicy
from workbench.language.codec import Json, as_stored, decode
from workbench.language.contact import (
    ChangeOrder,
    ContactState,
    IdentifierKey,
    ValueChange,
    apply_change,
    apply_event,
    merge_contacts,
    separate_contacts,
)
from workbench.language.decision import Decision, Failure
from workbench.language.event import Identifiers
from workbench.language.facts import CollectingEntry, ContactHistory, Facts, LaterEvent
from workbench.language.filter import matches
from workbench.language.graph import Graph
from workbench.language.live import LiveChange, PastMove
from workbench.language.moves import predict, steps_before
from workbench.language.run import JOINED, TERMINAL, EntryJoined, Run, State, Step, counts_towards_cap

MAX_ARRIVALS = 1_000  # the newest later events that an entry can read, as in the engine
NO_HISTORY = ContactHistory()
_MICROSECOND = timedelta(microseconds=1)
_NEVER = datetime.min.replace(tzinfo=UTC)


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """An event of the contact. `at`: when the service received it; `sent`: its identifiers; `payload`: JSON text.

    A log that can start an entry has a `source`: the key of the trigger's `LogSource`. Its parameters are in `args` of
    the payload. If entries can wait for the log as well, there is a second record of it, with its event name and
    without `source`. `attributes`: the attributes that a hypothetical event changes; None for a stored event, because
    the history of the contact has its changes. `imported`: it started nothing when it was stored.
    """

    id: str
    name: str
    at: datetime
    sent: Identifiers
    payload: bytes
    source: str | None = None
    attributes: dict[str, Json] | None = None
    imported: bool = False

    def read_payload(self) -> dict[str, Any]:
        """Return the payload as the engine reads it: as stored, or that of a log in the order of its parameters."""
        payload: dict[str, Any] = decode(self.payload)
        return payload if self.attributes is None or self.source is not None else as_stored(payload)


class UnsentMessage(NamedTuple):
    """A message whose delivery failed. Further attempts send the same text, and it counts from its first one.

    `in_doubt`: an attempt got no answer, so it may have arrived.
    """

    message: ExternalMessage
    stored_at: datetime
    in_doubt: bool = False


class SimulatedEntry(msgspec.Struct):
    """One entry on a timeline: the event that started it, its state, and the decisions on it.

    An entry that is still open at the end of the timeline has a state that is not terminal. `joined`: the events that
    joined it. `only_joins`: it is dropped, unless it joins another entry; then only that one has a record of it.
    `graph`, `version`: of the version that it runs; the timeline sets them. `failures`: the number of its steps that
    failed. `contact_id`: the contact that it started for. `unsent`: its message that failed and may be tried again.
    `stored_at`: the times of the first attempts of messages that were tried again, by id.
    """

    event: EventRecord
    payload: dict[str, Any]
    run: Run
    decisions: list[Decision] = []
    required: RequiredFacts = RequiredFacts()
    joined: list[LaterEvent] = []
    only_joins: bool = False
    graph: Graph | None = None
    version: int | None = None
    failures: int = 0
    contact_id: str = ""
    unsent: UnsentMessage | None = None
    stored_at: dict[str, datetime] = {}

    @property
    def has_entered(self) -> bool:
        """Whether it counts for reentry: a refused entry has no step (see `ContactHistory.entered_at`)."""
        return self.run.step > 0 or self.run.state is State.DEAD or self.run.state not in TERMINAL

    @property
    def messages_at(self) -> list[datetime]:
        """The times of its messages that count towards a frequency cap."""
        unsent = [] if self.unsent is None or not counts_towards_cap(self.unsent.message) else [self.unsent.stored_at]
        return unsent + [
            self.stored_at.get(effect.id, decision.step.at)
            for decision in self.decisions
            if decision.step is not None
            for effect in decision.effects
            if counts_towards_cap(effect)
        ]

    @property
    def steps(self) -> list[Step]:
        return [decision.step for decision in self.decisions if decision.step is not None]


class Walk(msgspec.Struct, frozen=True, gc=False):
    """The steps of an entry from a claim to its next wait or its end.

    `run`, `facts`: at its beginning. `arrival`: the event that woke the entry, or None.
    """

    entry: SimulatedEntry
    run: Run
    facts: Facts
    now: datetime
    decisions: list[Decision]
    arrival: LaterEvent | None


class OtherMessage(NamedTuple):
    """A message of another automation that counts towards a frequency cap.

    `event_id`: the event of its entry, if the entry sent it without waiting before, otherwise "". `is_younger`: the
    other automation is younger than this one, so its entry for the same event comes later.
    """

    at: datetime
    event_id: str
    is_younger: bool


class RecordedFailure(NamedTuple):
    """A step that failed at a node, and when the node was tried again; None: never.

    `at`: when it failed, which for a delivery that took long is later than its decision.
    """

    node_id: str
    failure: Failure
    next_at: datetime | None
    at: datetime


StartEntry: TypeAlias = Callable[[EventRecord], SimulatedEntry | None]
"""Returns the entry that an event starts, or None."""
ReportBug: TypeAlias = Callable[[str, Exception], None]
"""Is called with the id of the automation and the error when the interpreter raises."""


def ignore_bug(_: str, __: Exception) -> None:
    """Do nothing: the error of the run already names the exception."""


class PastEntries(msgspec.Struct, frozen=True):
    """The contact's entries from before the timeline: when the latest began, and when the last one ended.

    `ended_at` None: it is still open.
    """

    entered_at: datetime
    ended_at: datetime | None


def _of_one_moment(events: Sequence[EventRecord], number: int) -> Sequence[EventRecord]:
    """Return the event of this number and those after it that come at the same moment."""
    end = number + 1
    while end < len(events) and events[end].at == events[number].at:
        end += 1
    return events[number:end]


def latest_entries(entries: Iterable[PastEntries | None]) -> PastEntries | None:
    """Merge the past entries of several contacts; None if none has any."""
    past = [item for item in entries if item is not None]
    if not past:
        return None
    ends = [item.ended_at for item in past if item.ended_at is not None]
    return PastEntries(max(item.entered_at for item in past), max(ends) if len(ends) == len(past) else None)


class Timeline(msgspec.Struct):
    """A contact and its entries in one automation; `play` runs it up to a moment, from where it may go on.

    `past`: what the contact did before. `owners`: as in `apply_event`. `other_messages`: in ascending order. `changes`:
    those that something else than these entries makes to the contact, ordered by (at, event_id, order). `failures`: the
    failed steps that were recorded, in order, by the event that started the entry; `moves`: those of the entry.
    `graphs`: of all versions.
    `members`: its contacts, with their `past_entries`, if it absorbs another timeline or is absorbed. Then events
    count for entries that are not on it yet.
    """

    graph: Graph | None
    contact: ContactState
    past: ContactHistory = NO_HISTORY
    retries: RetryPolicy = DEFAULT_POLICY
    report_bug: ReportBug = ignore_bug
    owners: Mapping[IdentifierKey, str] = {}
    other_messages: Sequence[OtherMessage] = ()
    changes: Sequence[ValueChange | LiveChange | PastMove] = ()
    past_entries: PastEntries | None = None
    failures: Mapping[str, Sequence[RecordedFailure]] = {}
    moves: Mapping[str, Sequence[PastMove]] = {}
    graphs: tuple[Graph, ...] = ()
    live: LiveChange | None = None  # None: `graph` is live
    members: dict[str, PastEntries | None] = {}
    _applied_changes: int = 0  # the number of changes that took effect
    _changed_by: tuple[datetime, str, bool] = _NEVER, "", False  # the last of them, as its `OtherMessage` would be
    _open: dict[int, SimulatedEntry] = {}  # by the number of the entry
    _due: list[tuple[datetime, int]] = []  # a heap, ordered by time and then by the number of the entry
    _arrivals: list[LaterEvent] = []  # since the oldest open entry began
    _sent_at: list[datetime] = []
    _started_at: list[datetime] = []
    _entered_at: datetime | None = None
    _entries: list[SimulatedEntry] = []  # all of them, if there are `members`
    _kept_before: ContactState | None = None  # the state of the kept contact before it absorbed this one

    def play(self, events: Sequence[EventRecord], start: StartEntry, until: datetime) -> Iterator[Walk]:
        """Yield every walk of every entry, until all have ended or the next one is due at `until` or later.

        `events` are the contact's, ordered by (at, id), all before `until`. In `changes`, those of the events of one
        moment have the id of its first event.
        """
        together: Sequence[EventRecord] = ()
        to_come = Counter[str]()  # names of the events of this moment after this one
        for number, event in enumerate(events):
            begins = not together or together[0].at != event.at
            if begins:
                together = _of_one_moment(events, number)
                if len(together) > 1:
                    to_come = Counter(other.name for other in together)
            if to_come:
                to_come -= Counter((event.name,))
            awaited = to_come.keys()
            if self._applied_changes < len(self.changes):
                yield from self._apply_changes(event.at, event.id)
            if self._due:
                yield from self._process_due(event.at)
            before = self.contact
            if begins:  # the engine finds in the contact what all events of the moment changed
                for other in together:
                    if other.attributes is not None:
                        self.contact = apply_event(self.contact, other.sent, other.attributes, self.owners)
            if self._applied_changes < len(self.changes):
                self._apply_with(event, ChangeOrder.BEFORE_WAKING)
            if (self._open or self.members) and event.source is None:
                yield from self._wake_entries(event, before, awaited)
            if self._due:
                yield from self._process_due(event.at + _MICROSECOND, awaited=awaited)
            if self._applied_changes < len(self.changes):
                self._changed_by = event.at, event.id, False
                self._wake_followers(self._apply_with(event, ChangeOrder.BEFORE_START), event.at)
                if self._due:
                    yield from self._process_due(event.at + _MICROSECOND, awaited=awaited)
            entry = start(event)
            if entry is not None:
                if not self._open and not self.members:
                    self._arrivals.clear()
                entry.graph = self.graph
                if self.live is not None and self.live.version is not None:
                    entry.version = self.live.version.number
                entry.required = required_facts(self.graph, entry.run)
                if self.members:
                    self._entries.append(entry)
                if entry.only_joins:
                    decision = advance(self.graph, entry.run.claimed(), self._facts(entry, event.at, None), event.at)
                    self._join(entry, decision, event.at)
                    continue
                if self.moves:
                    self._expect_moves(entry, event.at)
                first_walk = self._process(len(self._started_at), entry, event.at)
                run = entry.run
                # After the entry has run, so that its own loop guard does not count it.
                if run.outcome != JOINED:
                    self._started_at.append(event.at)
                if entry.has_entered:
                    self._entered_at = event.at
                yield first_walk
        yield from self._apply_changes(until, "")
        if self._due:
            yield from self._process_due(until)

    def open_entries(self) -> list[SimulatedEntry]:
        """Return the entries that have not ended."""
        return [*self._open.values()]

    def absorb(self, other: "Timeline", at: datetime) -> None:
        """Continue with the values, the entries and the past of another contact, too, as after a merge.

        Both have been played until `at`. As in the engine, the merge makes entries due that something can wake.
        """
        other._kept_before = self.contact
        self.contact = merge_contacts(self.contact, other.contact)
        self.members |= other.members
        self.other_messages = sorted([*self.other_messages, *other.other_messages])
        self._arrivals = sorted([*self._arrivals, *other._arrivals], key=lambda arrival: (arrival.at, arrival.id or ""))
        self._entries += other._entries
        for entry in other.open_entries():
            self._expect_moves(entry, at)
        self._continue_with([*self.open_entries(), *other.open_entries()], at)

    def separate(self, other: "Timeline", at: datetime) -> None:
        """Undo `absorb`: return the contact, events and entries of `other` to it. Both timelines continue from `at`.

        What the kept contact did since the merge stays with it. The undo makes entries of both due, like the merge.
        """
        assert other._kept_before is not None, "it was absorbed"
        other._skip_changes(at)
        self.contact = separate_contacts(self.contact, other.contact, other._kept_before)
        self.members = {
            contact_id: past for contact_id, past in self.members.items() if contact_id not in other.members
        }
        taken = Counter(other.other_messages)
        self.other_messages = sorted((Counter(self.other_messages) - taken).elements())
        arrived = {arrival.id for arrival in other._arrivals}
        self._arrivals = [arrival for arrival in self._arrivals if arrival.id not in arrived]
        entries, open_entries = self._entries, self.open_entries()
        for timeline in (self, other):
            timeline._entries = [entry for entry in entries if entry.contact_id in timeline.members]
            timeline._continue_with([entry for entry in open_entries if entry.contact_id in timeline.members], at)

    def _continue_with(self, entries: list[SimulatedEntry], at: datetime) -> None:
        """Continue with these open entries, and with the past of all entries of the contacts that it has now."""
        for entry in entries:
            run, required = entry.run, entry.required
            node = None if entry.graph is None or run.node_id is None else entry.graph.by_id.get(run.node_id)
            collects = node is not None and isinstance(node.action, Collect)
            is_woken = required.later_events or required.attributes or collects
            if run.state is State.WAITING and is_woken:
                entry.run = msgspec.structs.replace(run, due_at=at)
        # Older entries come before younger ones; entries to come have higher numbers.
        self._open = dict(enumerate(sorted(entries, key=lambda entry: (entry.event.at, entry.event.id))))
        self._due = [(entry.run.due_at, number) for number, entry in self._open.items() if entry.run.due_at is not None]
        heapq.heapify(self._due)
        started = [entry for entry in self._entries if entry.run.outcome != JOINED or entry.run.step]
        self._started_at = sorted(entry.event.at for entry in started)
        self._entered_at = max((entry.event.at for entry in started if entry.has_entered), default=None)
        self._sent_at = sorted(at for entry in started for at in entry.messages_at)
        self.past_entries = latest_entries(self.members.values())

    def _skip_changes(self, before: datetime) -> None:
        """Take over the changes before a moment whose entries were played on another timeline."""
        while self._applied_changes < len(self.changes) and self.changes[self._applied_changes].at < before:
            change = self.changes[self._applied_changes]
            self._applied_changes += 1
            if isinstance(change, LiveChange):
                self.live, self.graph = change, None if change.version is None else change.version.graph
            elif isinstance(change, ValueChange):
                self.contact = apply_change(self.contact, change)

    def _apply_changes(self, before: datetime, event_id: str) -> Iterator[Walk]:
        """Apply the changes before an event. What is due earlier is processed first."""
        while self._applied_changes < len(self.changes):
            change = self.changes[self._applied_changes]
            if (change.at, change.event_id) >= (before, event_id):
                return
            if self._due:
                yield from self._process_due(change.at)
            self._applied_changes += 1
            if isinstance(change, LiveChange):
                yield from self._change_live(change)
                continue
            if isinstance(change, PastMove):
                self._move(change)
                continue
            earlier, self.contact = self.contact, apply_change(self.contact, change)
            self._changed_by = change.at, change.event_id, True
            self._wake_followers(earlier, change.at)

    def _apply_with(self, event: EventRecord, order: ChangeOrder) -> ContactState:
        """Apply the changes that take effect with an event, and return the contact before them."""
        before = self.contact
        while self._applied_changes < len(self.changes):
            change = self.changes[self._applied_changes]
            is_later = (change.at, change.event_id, change.order) > (event.at, event.id, order)
            if is_later or not isinstance(change, ValueChange):
                break
            self._applied_changes += 1
            self.contact = apply_change(self.contact, change)
        return before

    def _change_live(self, change: LiveChange) -> Iterator[Walk]:
        """Switch to what is live from now on. Entries that end with it are cancelled; paused ones continue."""
        self.live, self.graph = change, None if change.version is None else change.version.graph
        for number, entry in list(self._open.items()):
            run, outcome = entry.run, None
            if change.state in ("off", "archived"):
                outcome = "automation_archived" if change.state == "archived" else "automation_inactive"
            elif change.state == "live" and run.state is State.PAUSED:
                if change.cancels_overdue:
                    outcome = "overdue"
                else:
                    entry.run = run = run.to(State.PENDING, due_at=change.at)
                    heapq.heappush(self._due, (change.at, number))
            if outcome is not None:
                entry.run = run.to(State.CANCELLED, outcome=outcome)
                self._open.pop(number)
                self._give_up(entry)
                yield Walk(entry, run, self._facts(entry, change.at, None), change.at, [Decision(entry.run)], None)

    def _expect_moves(self, entry: SimulatedEntry, since: datetime) -> None:
        """Add the moves of an entry from `since` on to the changes that are still to come."""
        if moves := [move for move in self.moves.get(entry.event.id, ()) if move.at >= since]:
            rest = self.changes[self._applied_changes :]
            self.changes = sorted([*rest, *moves], key=attrgetter("at", "event_id"))
            self._applied_changes = 0

    def _move(self, move: PastMove) -> None:
        """Let an entry continue on another version, as in the engine (docs/decisions/0076), if it is where it was."""
        for number, entry in self._open.items():
            run = entry.run
            if entry.event.id != move.entry_event_id:
                continue
            is_there = (entry.version, run.node_id) == (move.from_version, move.from_node_id)
            if not is_there or run.state not in (State.WAITING, State.PAUSED):
                return
            graph, node_id = move.version.graph, move.node_id
            moved = msgspec.structs.replace(run, node_id=node_id, step=steps_before(graph, node_id, run.step))
            required, entry.required = entry.required, required_facts(graph, moved)
            facts = msgspec.structs.replace(self._facts(entry, move.at, None), paused=False)
            is_paused = run.state is State.PAUSED
            claimed = msgspec.structs.replace(moved, state=State.RUNNING, due_at=None)  # a paused one cannot be claimed
            prediction = predict(graph, claimed, facts, move.at)
            if isinstance(prediction, str):  # the contact differs from the one that the engine saw
                entry.required = required
                return
            due_at = prediction.run.due_at or move.at
            entry.run = msgspec.structs.replace(moved, due_at=due_at)
            entry.graph, entry.version = graph, move.version.number
            if not is_paused:
                heapq.heappush(self._due, (due_at, number))

    def _wake_followers(self, before: ContactState, now: datetime, except_number: int | None = None) -> None:
        """Make entries due that follow an attribute that has changed, as `record` of the engine does."""
        if self._open and (changed := self._changed_attributes(before)):
            for number, entry in self._open.items():
                is_waiting = number != except_number and entry.run.state is State.WAITING
                if is_waiting and not changed.isdisjoint(entry.required.attributes):
                    entry.run = msgspec.structs.replace(entry.run, due_at=now)
                    heapq.heappush(self._due, (now, number))

    def _process_due(self, before: datetime, number: int = 0, awaited: Set[str] = frozenset()) -> Iterator[Walk]:
        """Advance the entries that are due before a moment; of those that are due at it, the ones before `number`.

        Those that wait for one of the `awaited` events stay due: such an event comes at this moment, too.
        """
        kept = []
        while self._due and self._due[0] < (before, number):
            at, due_number = due = heapq.heappop(self._due)
            entry = self._open.get(due_number)
            # If an event woke the entry in the meantime, the heap still has its former due time.
            if entry is None or entry.run.due_at != at:
                continue
            if awaited.isdisjoint(entry.required.later_events):
                yield self._process(due_number, entry, at)
            else:
                kept.append(due)
        for due in kept:
            heapq.heappush(self._due, due)

    def _wake_entries(self, event: EventRecord, before: ContactState, awaited: Set[str]) -> Iterator[Walk]:
        """Advance the entries that wait for an event of this name, or follow an attribute that it has changed.

        Those that are due at its moment come in their turn. `awaited`: as in `_process_due`.
        """
        changed = self._changed_attributes(before)
        graphs = [graph for graph in self._graphs if event.name in graph.awaited]
        if not graphs and not changed:
            return
        is_stored = event.attributes is None
        arrival = LaterEvent(event.at, event.name, event.sent, event.read_payload(), event.id or None, is_stored)
        filters = [alternative for graph in graphs for alternative in graph.awaited[event.name]]
        # Most stored events pass no filter; an event that can never pass one wakes no entry.
        steadily = not changed and is_stored and all(graph.awaits_steadily for graph in graphs)
        if steadily and all(filters) and not self.members:
            context = Facts(arrival.event, arrival.sent, arrival.payload, self.contact).context
            if not any(matches(alternative, context, event.at) for alternative in filters):
                return
        if graphs:
            self._arrivals.append(arrival)
        for number, entry in list(self._open.items()):
            required, is_waiting = entry.required, entry.run.state is State.WAITING
            is_awaited = event.name in required.later_events
            if is_waiting and (is_awaited or not changed.isdisjoint(required.attributes)):
                if not is_awaited and not awaited.isdisjoint(required.later_events):
                    # It decides once, with the awaited event of this moment, as the engine does after a batch.
                    entry.run = msgspec.structs.replace(entry.run, due_at=event.at)
                    heapq.heappush(self._due, (event.at, number))
                    continue
                if self._due:
                    yield from self._process_due(event.at, number, awaited)
                yield self._process(number, entry, event.at, arrival)

    def _changed_attributes(self, before: ContactState) -> set[str]:
        """Return the attributes that an entry can follow and that differ from those of the contact before."""
        then, now = before.attributes, self.contact.attributes
        if then is now:
            return set()
        return {name for graph in self._graphs for name in graph.followed_attributes if then.get(name) != now.get(name)}

    @property
    def _graphs(self) -> tuple[Graph, ...]:
        return self.graphs or (() if self.graph is None else (self.graph,))

    def _process(self, number: int, entry: SimulatedEntry, now: datetime, arrival: LaterEvent | None = None) -> Walk:
        """Advance an entry until it waits or ends."""
        begun = entry.run.claimed()
        facts = self._facts(entry, now, arrival)
        run, after, decisions = begun, facts, []
        try:
            for decided, facts_after in walk(entry.graph, begun, facts, now):
                if self.failures:
                    decision, after = self._as_recorded(entry, run, decided, after, facts_after, now)
                else:
                    decision, after = decided, facts_after
                if decision.step is not None and decision.step.outcome == "failed":
                    entry.failures += 1
                decisions.append(decision)
                run = decision.run
                if run.state is not State.RUNNING:  # a delivery failed
                    break
        except Exception as error:  # noqa: BLE001  as in the engine: a bug in one entry must not stop the others
            self.report_bug(begun.automation_id, error)
            reason = f"internal_error: {type(error).__name__}"
            after, decisions = facts, [Decision(begun.to(State.DEAD, outcome="internal_error", error=reason))]
        entry.run = run = decisions[-1].run
        entry.decisions += decisions
        self.contact = after.contact
        self._wake_followers(facts.contact, now, except_number=number)
        self._join(entry, decisions[-1], now)
        if after.history is not facts.history:
            for sent_at in after.history.messages_at[len(facts.history.messages_at) :]:
                insort(self._sent_at, sent_at)  # one that was tried again is older
        if entry.unsent is not None and begun.node_id == entry.unsent.message.node_id != run.node_id:
            self._give_up(entry)
        if run.state in TERMINAL:
            self._open.pop(number, None)
            self._give_up(entry)
        else:
            entry.required = required_facts(entry.graph, run)
            self._open[number] = entry
            if run.due_at is not None:  # it is not paused
                heapq.heappush(self._due, (run.due_at, number))
        return Walk(entry, begun, facts, now, decisions, arrival)

    def _as_recorded(
        self, entry: SimulatedEntry, run: Run, decision: Decision, before: Facts, after: Facts, now: datetime
    ) -> tuple[Decision, Facts]:
        """Return a decision on `run` and the facts after it, with the next failure that was recorded, if it is here."""
        failures = self.failures.get(entry.event.id, ())
        recorded = failures[entry.failures] if entry.failures < len(failures) else None
        message = decision.effects[0] if decision.effects else None
        if isinstance(message, ExternalMessage):
            if recorded is None or recorded.node_id != message.node_id:
                if entry.unsent is not None and entry.unsent.message.id == message.id:
                    decision = msgspec.structs.replace(decision, effects=(entry.unsent.message,))
                    self._forget_unsent(entry)
                return decision, after
            assert entry.graph is not None, "a node sends the message"
            decision = decide_failure(entry.graph, run, recorded.failure, before, recorded.at)
            after = self._fail(entry, message, recorded.failure, before, now)
        elif decision.step is None or decision.step.outcome != "failed" or recorded is None:
            return decision, after
        if recorded.next_at is not None and decision.run.state is State.RETRYING:
            # Not after the computed delay: a late engine, or attempts of engines that stopped, have made it another.
            decision = msgspec.structs.replace(
                decision, run=msgspec.structs.replace(decision.run, due_at=recorded.next_at)
            )
        return decision, after

    def _fail(
        self, entry: SimulatedEntry, message: ExternalMessage, failure: Failure, facts: Facts, now: datetime
    ) -> Facts:
        """Keep a message whose delivery failed, and return the facts after that."""
        in_doubt = failure.cause == "no_answer"
        if entry.unsent is None or entry.unsent.message.id != message.id:
            entry.unsent = UnsentMessage(message, now, in_doubt)
            entry.stored_at[message.id] = now
            if counts_towards_cap(message):
                insort(self._sent_at, now)
        else:
            entry.unsent = entry.unsent._replace(in_doubt=in_doubt or entry.unsent.in_doubt)
        if not isinstance(message, EmailMessage) or failure.cause != "gone":
            return facts
        closed = apply_change(facts.contact, ValueChange(now, "suppressed", old=False, new=True))
        return msgspec.structs.replace(facts, contact=closed)

    def _give_up(self, entry: SimulatedEntry) -> None:
        """Do not try the message of an entry again that failed; it still counts if it may have arrived."""
        if entry.unsent is not None and not entry.unsent.in_doubt:
            self._forget_unsent(entry)

    def _forget_unsent(self, entry: SimulatedEntry) -> None:
        if entry.unsent is not None and counts_towards_cap(entry.unsent.message):
            self._sent_at.remove(entry.unsent.stored_at)
        entry.unsent = None

    def _join(self, entry: SimulatedEntry, decision: Decision, now: datetime) -> None:
        """Add the events of an entry to those of the entry that it joins, if that is the decision."""
        for joined in [effect for effect in decision.effects if isinstance(effect, EntryJoined)]:
            for number, other in self._open.items():
                if other.run.entry_id == joined.entry_id:
                    event = entry.event
                    started = LaterEvent(event.at, event.name, event.sent, entry.payload, event.id)
                    other.joined = sorted([*other.joined, started, *entry.joined], key=attrgetter("at", "id"))
                    if joined.is_last:
                        other.run = msgspec.structs.replace(other.run, due_at=now)
                        heapq.heappush(self._due, (now, number))

    def _collecting(self, entry: SimulatedEntry) -> tuple[CollectingEntry, ...]:
        """Return the other entries that may collect events, the oldest first."""
        own = [
            CollectingEntry(
                other.run.entry_id,
                other.run.node_id,
                other.event.name,
                other.payload,
                other.event.at,
                other.event.id,
                other.run.due_at,
                len(other.joined),
            )
            for other in self._open.values()
            if other is not entry and other.run.state is State.WAITING and other.run.node_id and other.run.due_at
        ]
        return (*self.past.collecting, *own)

    def _facts(self, entry: SimulatedEntry, now: datetime, arrival: LaterEvent | None) -> Facts:
        event, required, history = entry.event, entry.required, NO_HISTORY
        later_events: tuple[LaterEvent, ...] = ()
        messages_at: tuple[datetime, ...] = ()
        if required.entries or required.recent or required.messages or required.collecting:
            recent = 0
            if required.recent:
                started = len(self._started_at) - bisect_right(self._started_at, event.at - LOOP_WINDOW)
                recent = min(self.past.recent + started, LOOP_LIMIT)
            if required.messages:
                earlier, sent_at, since = self.past.messages_at, self._sent_at, now - required.messages
                messages_at = (*earlier[bisect_right(earlier, since) :], *sent_at[bisect_right(sent_at, since) :])
                unsent = entry.unsent
                if (
                    unsent is not None
                    and counts_towards_cap(unsent.message)
                    and unsent.message.node_id == entry.run.node_id
                    and unsent.stored_at in messages_at
                ):
                    own = messages_at.index(unsent.stored_at)  # it does not count for itself
                    messages_at = (*messages_at[:own], *messages_at[own + 1 :])
                if self.other_messages:
                    messages_at += self._other_messages_at(entry, since, now, arrival)
            past = self.past
            if self.past_entries is not None:
                entered_at, ended_at = self.past_entries.entered_at, self.past_entries.ended_at
                running = ended_at is None or ended_at > now
                past = msgspec.structs.replace(past, entered_at=entered_at, running=running)
            history = ContactHistory(
                self._entered_at or past.entered_at if required.entries else None,
                past.running or bool(self._open) if required.entries else False,
                recent,
                messages_at,
                self._collecting(entry) if required.collecting else (),
            )
        if required.later_events:
            later_events = tuple(
                arrival
                for arrival in self._arrivals[-MAX_ARRIVALS:]
                if arrival.event in required.later_events
                and (required.since is None or arrival.follows(required.since, required.since_id))
                and (arrival.at, arrival.id or "") > (event.at, event.id)
            )
        return Facts(
            event.name,
            event.sent,
            entry.payload,
            self.contact,
            paused=self.live is not None and self.live.state == "paused",
            retries=self.retries,
            history=history,
            later_events=later_events,
            joined=tuple(entry.joined) if required.collecting else None,
            at=event.at,
            stored_at=entry.stored_at,
        )

    def _other_messages_at(
        self, entry: SimulatedEntry, since: datetime, now: datetime, arrival: LaterEvent | None
    ) -> tuple[datetime, ...]:
        """Return the times of the messages that other automations sent after `since` and before this walk.

        An event first wakes entries, then starts those of older automations, then those of younger ones. An entry that
        is due at its moment comes before those, unless one of them made it due by a change of the contact.
        """
        messages = self.other_messages
        if arrival is not None:
            end = bisect_left(messages, (now, arrival.id or "", False))
        elif entry.run.node_id is None:
            end = bisect_right(messages, (now, entry.event.id, False))
        else:
            end = bisect_right(messages, max((now, "", True), self._changed_by))
        begin = bisect_right(messages, since, key=attrgetter("at"))
        return tuple(message.at for message in messages[begin:end])
