"""Simulate one bucket: read the events of some contacts, write what the automations would have done. No network."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from workbench.backtest.buckets import read_bucket
from workbench.draft import read_language
from workbench.language.channel import DEFAULT_POLICY, Message, RetryPolicy
from workbench.language.codec import decode, normalize
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers, mask_email
from workbench.language.run import JOINED, State, counts_towards_cap
from workbench.language.simulate import SimulatedAutomation, backtest
from workbench.language.starts import START_TYPES
from workbench.language.timeline import EventRecord, OtherMessage, SimulatedEntry

# Tables that are read, and tables that are written, as folders with one file per bucket.
EVENTS, CONTACTS, MESSAGES = "events", "contacts", "messages"
STEPS, ENTRIES, CONTACT_TOTALS = "steps", "entries", "contact_totals"

_TIME = pl.Datetime("us", "UTC")
_TEXT = pl.String
SCHEMAS: dict[str, dict[str, Any]] = {
    STEPS: {"entry": _TEXT, "contact": _TEXT, "node": _TEXT, "kind": _TEXT, "at": _TIME, "outcome": _TEXT,
            "handle": _TEXT, "reason": _TEXT, "arrives": pl.Boolean},
    ENTRIES: {"entry": _TEXT, "contact": _TEXT, "event": _TEXT, "at": _TIME, "state": _TEXT, "outcome": _TEXT,
              "node": _TEXT, "error": _TEXT},
    CONTACT_TOTALS: {"contact": _TEXT, "entries": pl.Int64, "messages": pl.Int64},
}  # fmt: skip
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


class BucketTask(msgspec.Struct, frozen=True):
    """The task of a worker: automations, the folder with the rows, the end of the period, the schedule of retries."""

    folder: str
    until: datetime
    automations: tuple[AutomationPayload, ...]
    retries: RetryPolicy = DEFAULT_POLICY


class BucketSummary(msgspec.Struct, frozen=True):
    """The summary of one or more buckets: events, erased contacts, and for each automation the first message of each
    node.

    `starts`: how many of the events are starts. `masked`: the email addresses were masked, because the key may not
    read them.
    """

    events: int = 0
    erased: int = 0
    masked: bool = False
    messages: tuple[tuple[Message, ...], ...] = ()
    starts: int = 0

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
        )


class BucketSimulator:
    def __init__(self, task: BucketTask) -> None:
        self._folder = Path(task.folder)
        self._until, self._retries = task.until, task.retries
        self._automations = [payload.automation() for payload in task.automations]

    def simulate(self, bucket: int) -> BucketSummary:
        """Simulate one bucket and write the results; an empty bucket writes nothing."""
        events = read_bucket(self._folder / EVENTS, bucket)
        if events is None:
            return BucketSummary()
        contacts: dict[str, ContactState] = {}
        contact_frame = read_bucket(self._folder / CONTACTS, bucket)
        # A contact is read once for each part of the period in which it has events, so it may have several rows.
        contact_table = () if contact_frame is None else contact_frame.iter_rows()
        for contact_id, wallet, email, external_id, attributes, tags, opted_out, segments, declined in contact_table:
            identifiers = Identifiers(wallet, email, external_id)
            own = decode(attributes.encode())
            if external_id is not None:
                own.pop("externalId", None)  # `metadata` also has it
            contacts[contact_id] = ContactState(
                contact_id, identifiers, own, tuple(tags), tuple(segments), tuple(opted_out), tuple(declined)
            )
        message_frame = read_bucket(self._folder / MESSAGES, bucket)
        other_messages: dict[str, list[OtherMessage]] = {}
        if message_frame is not None:
            for contact_id, *message in message_frame.sort("contact_id", "at", "event_id", "is_younger").iter_rows():
                other_messages.setdefault(contact_id, []).append(OtherMessage(*message))
        simulations = [_Simulation(automation) for automation in self._automations]
        erased = 0
        # Sorted by contact, then as the engine saw the events; ids are UUIDv7 and order events with the same time.
        # The runs of a schedule are read by their times, and the last one may have begun after the period.
        events = events.filter(pl.col("created_at") < self._until)
        rows = events.sort("contact_id", "created_at", "id").with_columns(pl.col("created_at").to_physical())
        for contact_id, contact_rows in groupby(rows.iter_rows(), itemgetter(0)):
            contact = contacts.get(contact_id)
            if contact is None:  # erased contacts are not returned by the query, but their events are
                erased += 1
                continue
            records = []
            for _, at, event_id, name, payload, wallet, email, external_id, source in contact_rows:
                sent, time = Identifiers(wallet, email, external_id), _EPOCH + timedelta(microseconds=at)
                records.append(EventRecord(event_id, name, time, sent, payload.encode(), source))
            messages = other_messages.get(contact_id, [])
            for simulation in simulations:
                entries = backtest(simulation.automation, contact, records, self._until, self._retries, messages)
                simulation.add(contact.id, entries)
        for number, simulation in enumerate(simulations):
            simulation.write(self._folder / str(number), bucket)
        emails = [contact.identifiers.email for contact in contacts.values()]
        masked = any(email is not None and email == mask_email(email) for email in emails)
        first_messages = tuple(tuple(simulation.first_messages.values()) for simulation in simulations)
        starts = int((events["source"].is_not_null() & events["event"].is_in(START_TYPES)).sum())
        return BucketSummary(events.height, erased, masked, first_messages, starts)


class _Simulation:
    """The tables of one automation for one bucket, row by row."""

    def __init__(self, automation: SimulatedAutomation) -> None:
        self.automation = automation
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self.first_messages: dict[str, Message] = {}

    def add(self, contact_id: str, entries: Iterable[SimulatedEntry]) -> None:
        started = messages = 0
        for entry in entries:
            event, run = entry.event, entry.run
            error = run.error if run.state is State.DEAD else None
            ending = (run.state.value, run.outcome, run.node_id, error)
            self._rows[ENTRIES].append((event.id, contact_id, event.name, _micros(event.at), *ending))
            self._add_steps(contact_id, entry)
            started += run.outcome not in TURNED_AWAY
            effects = (effect for decision in entry.decisions for effect in decision.effects)
            messages += sum(map(counts_towards_cap, effects))
        if started:
            self._rows[CONTACT_TOTALS].append((contact_id, started, messages))

    def write(self, folder: Path, bucket: int) -> None:
        for name, schema in SCHEMAS.items():
            # Times are integers until here, and cast as whole columns.
            integers = {column: pl.Int64 if kind == _TIME else kind for column, kind in schema.items()}
            rows = pl.DataFrame(self._rows[name], schema=integers, orient="row").cast(pl.Schema(schema))
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows.write_parquet(folder / name / f"{bucket:06}.parquet")

    def _add_steps(self, contact_id: str, entry: SimulatedEntry) -> None:
        node_id = None
        for decision in entry.decisions:
            step = decision.step
            if step is None:
                continue
            arrives = step.node_id != node_id  # False for a retry or the end of a wait: the entry was there before
            columns = (step.node_id, step.kind, _micros(step.at), step.outcome, step.handle, step.detail.get("cause"))
            self._rows[STEPS].append((entry.event.id, contact_id, *columns, arrives))
            node_id = step.node_id
            for effect in decision.effects:
                if isinstance(effect, Message):
                    self.first_messages.setdefault(effect.node_id, effect)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
