"""Simulate one bucket: read the events of some contacts, write what the automations would have done. No network."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from workbench.backtest.agreement import ONLY_SIMULATED, Difference, RealEntry, RealStep, compare, recorded_failures
from workbench.backtest.buckets import read_bucket
from workbench.backtest.merged import PastMerges, merged_topics, with_default_topics
from workbench.draft import read_language
from workbench.language.channel import DEFAULT_POLICY, Message, RetryPolicy
from workbench.language.codec import Json, decode, normalize
from workbench.language.contact import ChangeOrder, ContactState, ValueChange, contact_before
from workbench.language.event import Identifiers, mask_email
from workbench.language.graph import Graph
from workbench.language.live import (
    ActivationChange,
    ActivationState,
    LiveChange,
    PastMove,
    PublishedVersion,
    live_changes,
)
from workbench.language.run import JOINED, TERMINAL, State, counts_towards_cap
from workbench.language.simulate import LivePast, MergedContact, SimulatedAutomation, backtest
from workbench.language.starts import START_TYPES
from workbench.language.timeline import EventRecord, OtherMessage, PastEntries, SimulatedEntry

# Tables that are read, and tables that are written, as folders with one file per bucket.
EVENTS, CONTACTS, CHANGES, MESSAGES, MERGES = "events", "contacts", "changes", "messages", "merges"
REAL_ENTRIES, REAL_MOVES, PAST_ENTRIES = "real_entries", "real_moves", "past_entries"
STEPS, ENTRIES, CONTACT_TOTALS, DIFFERENCES = "steps", "entries", "contact_totals", "differences"

_TIME = pl.Datetime("us", "UTC")
_TEXT = pl.String
SCHEMAS: dict[str, dict[str, Any]] = {
    STEPS: {"entry": _TEXT, "contact": _TEXT, "node": _TEXT, "kind": _TEXT, "at": _TIME, "outcome": _TEXT,
            "handle": _TEXT, "reason": _TEXT, "arrives": pl.Boolean},
    ENTRIES: {"entry": _TEXT, "contact": _TEXT, "event": _TEXT, "at": _TIME, "state": _TEXT, "outcome": _TEXT,
              "node": _TEXT, "error": _TEXT},
    CONTACT_TOTALS: {"contact": _TEXT, "entries": pl.Int64, "messages": pl.Int64},
    DIFFERENCES: {"entry": _TEXT, "contact": _TEXT, "event_at": _TIME, "node": _TEXT, "at": _TIME, "real": _TEXT,
                  "simulated": _TEXT, "reason": _TEXT},
}  # fmt: skip
_STEP_KIND = ("node", "kind", "outcome", "handle", "reason", "arrives")
TURNED_AWAY = frozenset({"reentry", "loop_guard", JOINED})  # outcomes of entries that were not admitted

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class AutomationPayload(msgspec.Struct, frozen=True):
    """An automation as JSON. A split chooses branches by the id, so it has to be the id on the server."""

    id: str
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    def automation(self) -> SimulatedAutomation:
        """Return the automation for the interpreter; raise InvalidAutomationError when its shape is wrong."""
        return SimulatedAutomation(*read_language(normalize(self.trigger_spec), normalize(self.graph)), self.id)


class VersionPayload(msgspec.Struct, frozen=True):
    """A published version, and when it was published."""

    at: datetime
    number: int
    automation: AutomationPayload

    def version(self) -> PublishedVersion:
        automation = self.automation.automation()
        return PublishedVersion(self.at, self.number, automation.trigger, automation.graph or Graph())


class LivePayload(msgspec.Struct, frozen=True):
    """The versions of an automation and when they were live; `state`: what it is, if that never changed."""

    versions: tuple[VersionPayload, ...]
    activations: tuple[ActivationChange, ...]
    state: ActivationState


class BucketTask(msgspec.Struct, frozen=True):
    """The task of a worker: automations, the folder with the rows, the end of the period, the schedule of retries.

    `live`: play what was live of the first automation, and compare it with the entries that the engine made.
    """

    folder: str
    until: datetime
    automations: tuple[AutomationPayload, ...]
    retries: RetryPolicy = DEFAULT_POLICY
    live: LivePayload | None = None


class BucketSummary(msgspec.Struct, frozen=True):
    """The summary of one or more buckets: events, erased contacts, and for each automation the first message of each
    node.

    `starts`: how many of the events are starts. `masked`: the email addresses were masked, because the key may not
    read them. `compared`: the entries of the engine that were compared, `differing`: those of them that differ,
    `extra`: those that only the backtest has.
    """

    events: int = 0
    erased: int = 0
    masked: bool = False
    messages: tuple[tuple[Message, ...], ...] = ()
    starts: int = 0
    compared: int = 0
    differing: int = 0
    extra: int = 0

    def plus(self, other: "BucketSummary") -> "BucketSummary":
        if not other.messages:  # an empty bucket
            return self
        messages = []
        for index, new in enumerate(other.messages):
            first = self.messages[index] if self.messages else ()
            nodes = {message.node_id for message in first}
            messages.append((*first, *(message for message in new if message.node_id not in nodes)))
        return BucketSummary(
            self.events + other.events,
            self.erased + other.erased,
            self.masked or other.masked,
            tuple(messages),
            self.starts + other.starts,
            self.compared + other.compared,
            self.differing + other.differing,
            self.extra + other.extra,
        )


class BucketSimulator:
    def __init__(self, task: BucketTask) -> None:
        self._folder = Path(task.folder)
        self._until, self._retries = task.until, task.retries
        self._automations = [payload.automation() for payload in task.automations]
        self._live: tuple[LiveChange, ...] | None = None
        self._versions: dict[int, PublishedVersion] = {}
        if task.live is not None:
            versions = [payload.version() for payload in task.live.versions]
            self._versions = {version.number: version for version in versions}
            self._live = live_changes(versions, task.live.activations, task.live.state)

    def simulate(self, bucket: int) -> BucketSummary:
        """Simulate one bucket and write the results; an empty bucket writes nothing."""

        def read(name: str) -> pl.DataFrame | None:
            return read_bucket(self._folder / name, bucket)

        events, real_entries = read(EVENTS), read_real_entries(read(REAL_ENTRIES))
        if events is None and not real_entries:
            return BucketSummary()
        contacts = _read_contacts(read(CONTACTS))
        merges = PastMerges(read(MERGES), contacts)
        message_frame, change_frame, past_frame = (
            None if frame is None else merges.with_members(frame)
            for frame in (read(MESSAGES), read(CHANGES), read(PAST_ENTRIES))
        )
        other_messages = _read_messages(message_frame)
        changes, was_merged = read_changes(change_frame, merges.ids), _merged_contacts(change_frame, merges.ids)
        past_entries = _read_past_entries(past_frame)
        failures, compared = recorded_failures(real_entries), len(real_entries)
        moves = read_moves(read(REAL_MOVES), self._versions)
        simulations = [_Simulation(automation) for automation in self._automations]
        differences: list[Difference | None] = []
        erased = 0
        # Sorted by contact, then as the engine saw the events; ids are UUIDv7 and order events with the same time.
        rows: Iterable[tuple[Any, ...]] = ()
        if events is not None:
            # The runs of a schedule are read by their times, and the last one may have begun after the period.
            events = merges.with_members(events.filter(pl.col("created_at") < self._until))
            if merges.groups:
                events = events.with_columns(pl.col("contact_id").replace(merges.groups))
            events = events.sort("contact_id", "created_at", "id")
            # A bucket is small enough for whole columns, which are read faster than rows.
            columns = events.with_columns(pl.col("created_at").to_physical()).to_dict(as_series=False)
            rows = zip(*columns.values(), strict=True)
        for contact_id, contact_rows in groupby(rows, itemgetter(0)):
            if contact_id not in contacts:  # erased contacts are not returned by the query, but their events are
                erased += 1
                continue
            records = _read_events(contact_rows)
            own_merges = merges.of_group(contact_id)
            topics = merged_topics(own_merges, changes) if own_merges else {}
            played = []
            for own_id in dict.fromkeys([contact_id, *(id_ for merge in own_merges for id_ in merge.contact_ids)]):
                own, messages = records.get(own_id, []), other_messages.get(own_id, [])
                begun, others = contact_since(
                    with_default_topics(contacts[own_id], own_merges, contacts),
                    changes.get(own_id, ()),
                    own,
                    topics.get(own_id, ()),
                )
                played.append(MergedContact(begun, own, messages, others, past_entries.get(own_id)))
            first, *merged = played
            live = None if self._live is None else LivePast(self._live, first.past_entries, failures, moves)
            past = (
                self._retries,
                first.other_messages,
                first.changes,
                live,
                merged,
                [merge.merge for merge in own_merges],
            )
            for simulation in simulations:
                entries: Iterable[SimulatedEntry] = backtest(
                    simulation.automation, first.contact, first.events, self._until, *past
                )
                if live is not None:
                    entries = list(entries)
                    for entry in entries:
                        real, owner = real_entries.pop(entry.event.id, None), merges.owner(entry.contact_id)
                        differences.append(compare(real, entry, owner, self._until, merged=owner in was_merged))
                if not own_merges:
                    simulation.add(contact_id, entries)
                    continue
                by_owner: dict[str, list[SimulatedEntry]] = {}
                for entry in entries:
                    by_owner.setdefault(merges.owner(entry.contact_id), []).append(entry)
                for owner, own_entries in by_owner.items():
                    simulation.add(owner, own_entries)
        differences += [
            compare(entry, None, entry.contact_id, self._until, merged=entry.contact_id in was_merged)
            for entry in real_entries.values()
        ]
        differing = [difference for difference in differences if difference is not None]
        for number, simulation in enumerate(simulations):
            simulation.add_differences(differing)
            simulation.write(self._folder / str(number), bucket)
        emails = [contact.identifiers.email for contact in contacts.values()]
        masked = any(email is not None and email == mask_email(email) for email in emails)
        first_messages = tuple(tuple(simulation.first_messages.values()) for simulation in simulations)
        height = 0 if events is None else events.height
        starts = 0
        if events is not None:
            starts = int((events["source"].is_not_null() & events["event"].is_in(START_TYPES)).sum())
        extra = sum(difference.reason.startswith(ONLY_SIMULATED) for difference in differing)
        compared_entries = (compared, len(differing) - extra, extra)
        return BucketSummary(height, erased, masked, first_messages, starts, *compared_entries)


class _Simulation:
    """The tables of one automation for one bucket, row by row.

    A step is three numbers: that of its entry, that of its kind, and its time. The steps of a bucket are of few kinds.
    """

    def __init__(self, automation: SimulatedAutomation) -> None:
        self.automation = automation
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self._step_kinds: dict[tuple[Any, ...], int] = {}
        self.first_messages: dict[str, Message] = {}

    def add(self, contact_id: str, entries: Iterable[SimulatedEntry]) -> None:
        rows, steps, kinds = self._rows[ENTRIES], self._rows[STEPS], self._step_kinds
        started = messages = 0
        for entry in entries:
            event, run, number = entry.event, entry.run, len(rows)
            error = run.error if run.state is State.DEAD else None
            at, at_us = event.at, _micros(event.at)
            rows.append((event.id, contact_id, event.name, at_us, str(run.state), run.outcome, run.node_id, error))
            started += run.outcome not in TURNED_AWAY
            node_id = None
            for decision in entry.decisions:
                step = decision.step
                if step is None:
                    continue
                if step.at is not at:  # most steps are taken at the moment of the one before
                    at, at_us = step.at, _micros(step.at)
                arrives = step.node_id != node_id  # False for a retry or the end of a wait: the entry was there before
                node_id = step.node_id
                kind = (node_id, step.kind, step.outcome, step.handle, step.detail.get("cause"), arrives)
                steps.append((number, kinds.setdefault(kind, len(kinds)), at_us))
                for effect in decision.effects:
                    messages += counts_towards_cap(effect)
                    if node_id not in self.first_messages and isinstance(effect, Message):
                        self.first_messages[node_id] = effect
        if started:
            self._rows[CONTACT_TOTALS].append((contact_id, started, messages))

    def add_differences(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            row = (_micros(value) if isinstance(value, datetime) else value for value in difference)
            self._rows[DIFFERENCES].append(tuple(row))

    def write(self, folder: Path, bucket: int) -> None:
        tables = {name: _table(self._rows[name], SCHEMAS[name]) for name in (ENTRIES, CONTACT_TOTALS, DIFFERENCES)}
        steps = _table(self._rows[STEPS], {"entry": pl.UInt32, "kind": pl.UInt32, "at": _TIME})
        kinds = _table([*self._step_kinds], {name: SCHEMAS[STEPS][name] for name in _STEP_KIND})
        entries = tables[ENTRIES].select("entry", "contact")[steps["entry"]]
        tables[STEPS] = pl.concat([entries, kinds[steps["kind"]], steps.select("at")], how="horizontal")
        for name, rows in tables.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows.select(*SCHEMAS[name]).write_parquet(folder / name / f"{bucket:06}.parquet", compression="lz4")


def _table(rows: list[tuple[Any, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    """Return rows as a frame. It is made column by column, which is faster; times are integers, and are cast."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    integers = {name: pl.Int64 if kind == _TIME else kind for name, kind in schema.items()}
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=integers).cast(pl.Schema(schema))


def _read_contacts(frame: pl.DataFrame | None) -> dict[str, ContactState]:
    """Return the contacts by id. A contact has a row for each part of the period in which it has events."""
    contacts: dict[str, ContactState] = {}
    rows = () if frame is None else frame.iter_rows()
    for _, wallet, email, external_id, attributes, tags, opted_out, segments, declined, contact_id in rows:
        own = decode(attributes.encode())
        if external_id is not None:
            own.pop("externalId", None)  # `metadata` also has it
        contacts[contact_id] = ContactState(
            contact_id,
            Identifiers(wallet, email, external_id),
            own,
            tuple(tags),
            tuple(segments),
            tuple(opted_out),
            tuple(declined),
        )
    return contacts


def _read_messages(frame: pl.DataFrame | None) -> dict[str, list[OtherMessage]]:
    """Return the messages of other automations by contact (`member_id`), in order."""
    messages: dict[str, list[OtherMessage]] = {}
    rows = () if frame is None else frame.sort("at", "event_id", "is_younger").iter_rows()
    for _, *message, contact_id in rows:
        messages.setdefault(contact_id, []).append(OtherMessage(*message))
    return messages


def _read_events(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[EventRecord]]:
    """Return events by contact (`member_id`)."""
    records: dict[str, list[EventRecord]] = {}
    for _, at, event_id, name, payload, wallet, email, external_id, source, member_id, imported in rows:
        sent, time = Identifiers(wallet, email, external_id), _EPOCH + timedelta(microseconds=at)
        record = EventRecord(event_id, name, time, sent, payload.encode(), source, imported=imported)
        records.setdefault(member_id, []).append(record)
    return records


def read_real_entries(frame: pl.DataFrame | None) -> dict[str, RealEntry]:
    """Return the entries of the engine with their steps, by event."""
    entries: dict[str, RealEntry] = {}
    rows = () if frame is None else frame.sort("claim", "step").iter_rows()
    for contact_id, event_id, version, state, outcome, created_at, updated_at, _, step, node_id, *result in rows:
        if event_id not in entries:
            ended_at = updated_at if State(state) in TERMINAL else None
            entries[event_id] = RealEntry(event_id, contact_id, version, State(state), outcome, created_at, ended_at)
        if step is not None:
            step_outcome, handle, cause, at = result
            entries[event_id].steps.append(RealStep(node_id, step_outcome, handle, cause, at))
    return entries


def read_moves(frame: pl.DataFrame | None, versions: Mapping[int, PublishedVersion]) -> dict[str, list[PastMove]]:
    """Return the moves of entries to other versions, and back, in order, by event.

    Those to versions that were published after the period are left out, because they were moved after it, too.
    """
    moves: dict[str, list[PastMove]] = {}
    rows = () if frame is None else frame.iter_rows()
    for _, event_id, from_version, from_node_id, to_version, to_node_id, moved_at, moved_back_at in rows:
        former, later = (from_version, from_node_id), (to_version, to_node_id)
        for at, start, (number, node_id) in ((moved_at, former, later), (moved_back_at, later, former)):
            if at is not None and number in versions:
                moves.setdefault(event_id, []).append(PastMove(at, event_id, *start, versions[number], node_id))
    for own in moves.values():
        own.sort(key=attrgetter("at"))
    return moves


def _read_past_entries(frame: pl.DataFrame | None) -> dict[str, PastEntries]:
    rows = () if frame is None else frame.iter_rows()
    return {
        contact_id: PastEntries(entered_at, None if is_open else ended_at)
        for _, entered_at, ended_at, is_open, contact_id in rows
    }


def read_changes(frame: pl.DataFrame | None, merge_ids: Collection[str] = ()) -> dict[str, list[ValueChange]]:
    """Return the changes by contact (`member_id`), in the order in which they were made.

    Those by `merge_ids` are the automation's own: these merges are simulated.
    """
    changes: dict[str, list[ValueChange]] = {}
    values: dict[str | None, Json | msgspec.UnsetType] = {None: msgspec.UNSET}  # decoded: many changes have the same
    orders = [*ChangeOrder]
    if frame is not None:
        rows = frame.sort("member_id", "changed_at").drop("contact_id", "changed_at", "cause").iter_rows()
        for at, field, old, new, event_id, order, is_own, contact_id, merge_id in rows:
            for text in (old, new):
                if text not in values:
                    values[text] = decode(text.encode())
            what = (at, field, values[old], values[new], event_id, orders[order])
            changes.setdefault(contact_id, []).append(ValueChange(*what, is_own or merge_id in merge_ids))
    return changes


def _merged_contacts(frame: pl.DataFrame | None, merge_ids: Collection[str]) -> set[str]:
    """Return the contacts that another one was merged into, or separated from, by merges that are not simulated."""
    if frame is None:
        return set()
    return set(frame.filter((pl.col("cause") == "merge") & ~pl.col("merge_id").is_in([*merge_ids]))["contact_id"])


def contact_since(
    contact: ContactState,
    changes: Sequence[ValueChange],
    events: Sequence[EventRecord],
    topics: Sequence[ValueChange] = (),
) -> tuple[ContactState, list[ValueChange]]:
    """Return the contact before its changes, and those that something else than the automation made, in order.

    `topics`: further ones, by merges.
    """
    if not changes and not topics:
        return contact, []
    at_of, first_at = {event.id: event.at for event in events}, dict[datetime, str]()
    for event in events:
        first_at.setdefault(event.at, event.id)
    others = [*topics]
    for change in changes:
        if change.is_own:
            continue
        if not change.event_id:
            others.append(change)
            continue
        at, event_id = at_of.get(change.event_id, change.at), change.event_id
        if event_id not in at_of:  # of an event that was not read
            event_id = ""
        if change.order is ChangeOrder.BEFORE_WAKING and at in first_at:
            event_id = first_at[at]  # what events of one moment changed takes effect with the first of them
        others.append(msgspec.structs.replace(change, at=at, event_id=event_id))
    others.sort(key=attrgetter("at", "event_id", "order"))
    return contact_before(contact, changes), others


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
