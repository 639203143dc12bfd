"""Simulations and backtests: the engine's interpreter on a virtual clock, without performing anything.

`simulate` follows one entry of a described contact and described later events, which are validated like real ones. For
a reader without access to personal data the trace is redacted (see `redact`). `backtest` plays the stored events of one
contact, each of which may start an entry. Both run on a `Timeline`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workbench.language.actions import MAX_WAIT, filters_in
from workbench.language.advance import advance
from workbench.language.body import Body, read_value
from workbench.language.channel import CHANNELS, DEFAULT_POLICY, ChannelName, Message, RetryPolicy
from workbench.language.codec import Json, as_stored, normalize
from workbench.language.contact import ContactState, IdentifierKey, ValueChange, apply_event, merge_identifiers
from workbench.language.event import LOG_NAME, Event, Identifiers, normalize_email
from workbench.language.facts import ContactHistory, apply_effects
from workbench.language.filter import Verdict, explain, matches
from workbench.language.graph import Graph
from workbench.language.live import LiveChange, PastMove
from workbench.language.problem import Problem, Problems, problems_in
from workbench.language.redact import redact_decision, redact_verdicts
from workbench.language.run import TERMINAL, ContactUpdated, EntryJoined, Run, State, Step, TagAdded, TagRemoved
from workbench.language.timeline import (
    NO_HISTORY,
    EventRecord,
    OtherMessage,
    PastEntries,
    RecordedFailure,
    ReportBug,
    SimulatedEntry,
    Timeline,
    Walk,
    ignore_bug,
)
from workbench.language.trigger import Trigger, flat_context, read_later_event

SIMULATED_ID = "00000000-0000-8000-8000-000000000000"
MAX_LATER_EVENTS = 100
MAX_AFTER_S = MAX_WAIT // timedelta(seconds=1)
NOT_LATER_EVENTS = f"must be an array of at most {MAX_LATER_EVENTS} later events"
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_FOREVER = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
    the reader of the trace may see it; None: as it is. `owners`: as in `apply_event`. `report_bug`: is called if the
    entry ends as `internal_error`. `entry_id`, `event_id`: set to repeat a stored entry, with its message ids and
    pauses between retries.
    """

    history: ContactHistory = NO_HISTORY
    later: tuple[ScheduledEvent, ...] = ()
    retries: RetryPolicy = DEFAULT_POLICY
    entry_id: str = SIMULATED_ID
    event_id: str = ""
    until: datetime | None = None
    visible_contact: ContactState | None = None
    report_bug: ReportBug = ignore_bug
    owners: Mapping[IdentifierKey, str] = {}


NO_INPUT = SimulationInput()


class LivePast(msgspec.Struct, frozen=True):
    """The past of an automation and of one contact in it.

    `changes`: of what was live, since the first version. `past_entries`: those from before the backtest. `failures`,
    `moves`: as in `Timeline`.
    """

    changes: tuple[LiveChange, ...]
    past_entries: PastEntries | None = None
    failures: Mapping[str, Sequence[RecordedFailure]] = {}
    moves: Mapping[str, Sequence[PastMove]] = {}


class ContactMerge(msgspec.Struct, frozen=True):
    """A merge of `member_id` into another contact at a moment, and when it was undone."""

    member_id: str
    into_id: str
    at: datetime
    undone_at: datetime | None = None


class MergedContact(msgspec.Struct, frozen=True):
    """A contact that was one with another for a time, and what `backtest` needs to know of it.

    `events`: those that were its own when they were stored.
    """

    contact: ContactState
    events: Sequence[EventRecord]
    other_messages: Sequence[OtherMessage] = ()
    changes: Sequence[ValueChange] = ()
    past_entries: PastEntries | None = None


class MissedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event with the awaited name that did not pass the filters of the wait."""

    node_id: str
    event: str
    at: datetime
    verdicts: tuple[Verdict, ...]


class Trace(msgspec.Struct, frozen=True, gc=False, rename="camel"):
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
    circumstances: SimulationInput = NO_INPUT,
) -> Trace:
    """Return the trace of `event` from `contact` at `now`. Waits and retries pass at once, on a virtual clock.

    `now` must be between `EARLIEST` and `LATEST`: a thousand waits of a year after that are still valid dates.
    """
    first, trigger, visible = _record(event, now), automation.trigger, circumstances.visible_contact
    run = Run(circumstances.entry_id, automation.id, since_id=first.id, event_id=circumstances.event_id)
    entry = SimulatedEntry(first, first.read_payload(), run)
    filters = trigger.filters
    true_verdicts = verdicts = explain(filters, _trigger_context(entry, contact), now) if filters else ()
    if visible is not None:
        verdicts = redact_verdicts(verdicts, explain(filters, _trigger_context(entry, visible), now))
    name_matched = trigger.matches_event(event.name, event.source)
    if not name_matched or not all(verdict.passed for verdict in true_verdicts):
        return Trace(False, verdicts, name_matched=name_matched)
    graph = automation.graph
    if graph is not None and contact.id == SIMULATED_ID:
        graph = without_holdout(graph)  # the bucket of an invented id means nothing
    scheduled = sorted(circumstances.later, key=lambda item: item.after)
    # Their ids are in their order, because an entry tells events of one moment apart by id.
    later = [_record(item.event, now + item.after, f"{number:09}") for number, item in enumerate(scheduled)]
    # `play` stops before its bound, and `until` is included.
    until = _FOREVER if circumstances.until in (None, _FOREVER) else circumstances.until + _MICROSECOND
    events = [record for record in (first, *later) if record.at < until]
    history, retries, owners = circumstances.history, circumstances.retries, circumstances.owners
    timeline = Timeline(graph, contact, history, retries, circumstances.report_bug, owners)

    def start(record: EventRecord) -> SimulatedEntry | None:
        if record is first:
            return entry
        # A later event starts no entry, but it may join this one.
        collects = graph is not None and graph.collects
        return _start_entry(automation, timeline.contact, record, only_joins=True) if collects else None

    walks = shown = [*timeline.play(events, start, until)]
    if visible is not None:
        shown = _redact(graph, walks, visible, events, owners)
    steps: list[Step] = []
    messages: list[Message] = []
    tags: list[str] = []
    removed_tags: list[str] = []
    attributes: dict[str, Json] = {}
    error = None
    for walk in shown:
        for decision in walk.decisions:
            error = decision.run.error
            if decision.step is not None:
                steps.append(decision.step)
            for effect in decision.effects:
                match effect:
                    case TagAdded(tag=tag):
                        tags.append(tag)
                    case TagRemoved(tag=tag):
                        removed_tags.append(tag)
                    case ContactUpdated(attributes=written):
                        attributes |= written
                    case EntryJoined():
                        pass
                    case _:
                        messages.append(effect)
    return Trace(
        matched=True,
        verdicts=verdicts,
        steps=tuple(steps),
        messages=tuple(messages),
        tags=tuple(tags),
        removed_tags=tuple(removed_tags),
        attributes=attributes,
        state=entry.run.state,
        outcome=entry.run.outcome,
        error=error,
        missed=_missed_events(graph, walks, shown) if later else (),
    )


def backtest(
    automation: SimulatedAutomation,
    contact: ContactState,
    events: Sequence[EventRecord],
    until: datetime,
    retries: RetryPolicy = DEFAULT_POLICY,
    other_messages: Sequence[OtherMessage] = (),
    changes: Sequence[ValueChange] = (),
    live: LivePast | None = None,
    merged: Sequence[MergedContact] = (),
    merges: Sequence[ContactMerge] = (),
) -> Iterator[SimulatedEntry]:
    """Yield the contact's entries as they end, then those that are still open at the end of the backtest.

    `events` are the contact's, ordered by (at, id), all before `until`. Events that the automation does not name may be
    left out. `other_messages`: the messages of other automations to the contact, in ascending order. `contact`: its
    values at the beginning. `changes`: those since then, as in `Timeline`. The contact begins without earlier entries.
    `live`: play what was live instead, as it happened; then only the id of the automation counts. `merged`: the
    other contacts of these `merges`, which are played apart before each merge and after its undo.
    """

    def open_timeline(
        contact: ContactState,
        other_messages: Sequence[OtherMessage],
        changes: Sequence[ValueChange],
        past_entries: PastEntries | None,
    ) -> Timeline:
        timeline = Timeline(automation.graph, contact, retries=retries, other_messages=other_messages, changes=changes)
        timeline.members = {contact.id: past_entries} if merged else {}
        if live is not None:
            timeline.graph, timeline.past_entries, timeline.failures = None, past_entries, live.failures
            timeline.moves = live.moves
            versions = [change.version for change in live.changes if change.version is not None]
            timeline.graphs = tuple({version.number: version.graph for version in versions}.values())
            timeline.changes = sorted((*changes, *live.changes), key=attrgetter("at", "event_id", "order"))
        return timeline

    def play(timeline: Timeline, events: Sequence[EventRecord], until: datetime) -> Iterator[SimulatedEntry]:
        def start(event: EventRecord) -> SimulatedEntry | None:
            if live is None:
                return _start_entry(automation, timeline.contact, event)
            live_now = timeline.live
            if event.imported or live_now is None or live_now.version is None or live_now.state != "live":
                return None
            played = SimulatedAutomation(live_now.version.trigger, None, automation.id)
            return _start_entry(played, timeline.contact, event)

        return (walk.entry for walk in timeline.play(events, start, until) if walk.entry.run.state in TERMINAL)

    own_past = None if live is None else live.past_entries
    timeline = open_timeline(contact, other_messages, changes, own_past)
    if not merged:
        yield from play(timeline, events, until)
        yield from timeline.open_entries()
        return

    timelines, absorbed = {contact.id: timeline}, dict[str, Timeline]()
    own_events = {contact.id: [*events]}
    played_until = {contact.id: EARLIEST}
    moments = [(merge.at, False, merge) for merge in merges]
    moments += [(merge.undone_at, True, merge) for merge in merges if merge.undone_at is not None]
    for item in merged:
        own_id = item.contact.id
        timelines[own_id] = open_timeline(item.contact, item.other_messages, item.changes, item.past_entries)
        own_events[own_id], played_until[own_id] = [*item.events], EARLIEST

    def play_until(contact_id: str, end: datetime) -> Iterator[SimulatedEntry]:
        timeline, since = timelines[contact_id], played_until[contact_id]
        played_until[contact_id] = end
        records = [event for own_id in timeline.members for event in own_events[own_id] if since <= event.at < end]
        yield from play(timeline, sorted(records, key=attrgetter("at", "id")), end)

    for at, is_undo, merge in sorted(moments, key=itemgetter(0)):
        if at >= until:
            break
        own_id, into_id = merge.member_id, merge.into_id if merge.into_id in timelines else contact.id
        yield from play_until(into_id, at)
        if is_undo:
            timelines[own_id], played_until[own_id] = absorbed.pop(own_id), at
            timelines[into_id].separate(timelines[own_id], at)
        else:
            yield from play_until(own_id, at)
            absorbed[own_id] = timelines.pop(own_id)
            timelines[into_id].absorb(absorbed[own_id], at)
    for contact_id, timeline in timelines.items():
        yield from play_until(contact_id, until)
        yield from timeline.open_entries()


def without_holdout(graph: Graph) -> Graph:
    """Return the graph without its holdout."""
    if not graph.settings.holdout:
        return graph
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, holdout=0))


def in_locale(graph: Graph, locale: str) -> Graph:
    """Return the graph with the texts for a locale, whatever that of the contact."""
    return msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, preview_locale=locale))


def _read_email(value: Any, path: str) -> str | Problems:
    if not isinstance(value, str):
        return (Problem(path, "must be a string"),)
    return normalize_email(value) or (Problem(path, "not a valid email address"),) if value else value


def _read_attributes(value: Any, path: str) -> dict[str, Json] | Problems:
    try:
        attributes = normalize(value) if isinstance(value, Mapping) else None
    except (TypeError, ValueError):
        return (Problem(path, "must hold strings, numbers and booleans"),)
    return (Problem(path, "must be an object"),) if attributes is None else attributes


_OPT_OUTS = Meta(extra={"reason": f"must be an array with some of {', '.join(CHANNELS)}"})


class ContactDescription(Body, frozen=True, rename="camel"):
    """A contact to simulate. Every field is optional, and an empty text counts as absent."""

    id: str | None = None
    email: Annotated[str, Meta(extra={"read": _read_email})] | None = None
    wallet_address: str | None = None
    external_id: str | None = None
    attributes: Annotated[dict[str, Any], Meta(extra={"read": _read_attributes})] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    opted_out: Annotated[tuple[ChannelName, ...], _OPT_OUTS] = ()
    declined: Annotated[tuple[str, ...], Meta(description="The topics that it declined.")] = ()

    @property
    def state(self) -> ContactState:
        """The contact with its values as the service would store them."""
        wallet = self.wallet_address or None
        identifiers = Identifiers(wallet and wallet.lower(), self.email or None, self.external_id or None, wallet)
        values = identifiers, as_stored(self.attributes), self.tags, self.segments, self.opted_out, self.declined
        return ContactState(self.id or SIMULATED_ID, *values)


def read_contact(value: Any) -> ContactState | Problems:
    """Return a described contact, or its problems."""
    described = ContactDescription() if value is None else read_value(ContactDescription, value, "contact")
    return described if isinstance(described, tuple) else described.state


def read_scheduled_events(value: Any, now_us: int, field: str, problems: list[Problem]) -> tuple[ScheduledEvent, ...]:
    """Return the later events in a decoded JSON value; add what is wrong with them to `problems`.

    The value is an array of `{afterSeconds, event}`; each event is validated at the time of its arrival.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LATER_EVENTS:
        problems.append(Problem(field, NOT_LATER_EVENTS))
        return ()
    scheduled: list[ScheduledEvent] = []
    for index, item in enumerate(value):
        path = f"{field}[{index}]"
        described = item.get("event") if isinstance(item, dict) else None
        if not isinstance(described, dict):
            problems.append(Problem(f"{path}.event", "must be an event"))
            continue
        seconds = item.get("afterSeconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 <= seconds <= MAX_AFTER_S:
            reason = f"must be a number of seconds from 0 to {MAX_AFTER_S:,}"
            problems.append(Problem(f"{path}.afterSeconds", reason))
            continue
        after_us = int(seconds * 1_000_000)
        event = read_later_event(described, now_us + after_us)
        if isinstance(event, Event):
            scheduled.append(ScheduledEvent(timedelta(microseconds=after_us), event))
        else:
            problems += problems_in(f"{path}.event", event)
    return tuple(scheduled)


def _record(event: Event, at: datetime, id_: str = "") -> EventRecord:
    return EventRecord(id_, event.name, at, event.identifiers, event.payload, event.source, event.attributes)


def _trigger_context(entry: SimulatedEntry, contact: ContactState) -> dict[str, Any]:
    identifiers = merge_identifiers(entry.event.sent, contact.identifiers)
    return flat_context(entry.event.name, contact.id, identifiers, entry.payload)


def _start_entry(
    automation: SimulatedAutomation, contact: ContactState, event: EventRecord, *, only_joins: bool = False
) -> SimulatedEntry | None:
    """Return a new entry if the event passes the trigger."""
    trigger = automation.trigger
    if not trigger.matches_event(event.name, event.source):
        return None
    if trigger.is_wildcard and LOG_NAME.fullmatch(event.name):
        return None  # a log that steps wait for has no source, and is no custom event
    payload = event.read_payload()
    if not trigger.concerns(payload, contact.identifiers.wallet):
        return None
    run = Run(event.id, automation.id, since_id=event.id, event_id=event.id)
    entry = SimulatedEntry(
        event, trigger.payload_of(payload, event.source), run, only_joins=only_joins, contact_id=contact.id
    )
    if trigger.filters and not matches(trigger.filters, _trigger_context(entry, contact), event.at):
        return None
    return entry


def _redact(
    graph: Graph | None,
    walks: Iterable[Walk],
    visible: ContactState,
    events: Iterable[EventRecord],
    owners: Mapping[IdentifierKey, str],
) -> list[Walk]:
    """Return the walks as a reader may see them; `visible`: the visible part of the contact before the first event."""
    redacted, upcoming = [], deque(events)
    for walk in walks:
        while upcoming and upcoming[0].at <= walk.now:
            event = upcoming.popleft()
            visible = apply_event(visible, event.sent, event.attributes or {}, owners)
        run, decisions = walk.run, []
        begun = facts = msgspec.structs.replace(walk.facts, contact=visible)
        for true_decision in walk.decisions:
            decision = redact_decision(true_decision, advance(graph, run, facts, walk.now))
            run, facts = true_decision.run, apply_effects(facts, decision.effects, walk.now)
            decisions.append(decision)
        visible = facts.contact
        redacted.append(msgspec.structs.replace(walk, facts=begun, decisions=decisions))
    return redacted


def _missed_events(graph: Graph | None, walks: Sequence[Walk], shown: Sequence[Walk]) -> tuple[MissedEvent, ...]:
    """Return the events that woke the entry, but did not pass the filters of its wait."""
    missed = []
    for walk, shown_walk in zip(walks, shown, strict=True):
        arrival, run = walk.arrival, walk.decisions[-1].run
        if graph is None or arrival is None or run.node_id is None or run.state is not State.WAITING:
            continue
        if graph.waits.get(run.node_id) == arrival.event:
            filters = filters_in(graph.by_id[run.node_id].action)
            verdicts = explain(filters, walk.facts.context_of(arrival), arrival.at)
            if not all(verdict.passed for verdict in verdicts):
                if shown_walk is not walk:
                    verdicts = redact_verdicts(
                        verdicts, explain(filters, shown_walk.facts.context_of(arrival), arrival.at)
                    )
                missed.append(MissedEvent(run.node_id, arrival.event, arrival.at, verdicts))
    return tuple(missed)
