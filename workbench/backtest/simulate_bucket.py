"""Simulate one bucket: read the events of some contacts, write what the automations would have done. No network."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from workbench.backtest.buckets import read_bucket
from workbench.errors import InvalidAutomationError
from workbench.language.backtest import BacktestSettings, EventRecord, SimulatedEntry, backtest, prepare_backtest
from workbench.language.codec import decode, normalise
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers, mask_email
from workbench.language.graph import Graph, read_graph
from workbench.language.run import EmailMessage, InappMessage, Message, State
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import Trigger, read_trigger

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
TURNED_AWAY = frozenset({"reentry", "loop_guard"})  # outcomes of contacts that were not let in

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_TO_CONTACT = (InappMessage, EmailMessage)


class AutomationPayload(msgspec.Struct, frozen=True):
    """An automation as JSON. A split chooses branches by the id, so it has to be the id on the server."""

    id: str
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    def automation(self) -> SimulatedAutomation:
        """Return the automation for the interpreter; raise InvalidAutomationError when its shape is wrong."""
        trigger, graph = read_trigger(normalise(self.trigger_spec)), read_graph(normalise(self.graph))
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            return SimulatedAutomation(trigger, graph, self.id)
        problems = [*(trigger if isinstance(trigger, tuple) else ()), *(graph if isinstance(graph, tuple) else ())]
        raise InvalidAutomationError("; ".join(map(str, problems)))


class BucketTask(msgspec.Struct, frozen=True):
    """The task of a worker: automations, the folder with the rows, and the end of the period."""

    folder: str
    until: datetime
    automations: tuple[AutomationPayload, ...]


class BucketSummary(msgspec.Struct, frozen=True):
    """The summary of one or more buckets: events, erased contacts, and for each automation the first message of each
    node.

    `masked`: the email addresses were masked, because the key may not read them.
    """

    events: int = 0
    erased: int = 0
    masked: bool = False
    messages: tuple[tuple[Message, ...], ...] = ()

    def plus(self, other: "BucketSummary") -> "BucketSummary":
        """Return the summary of both."""
        if not other.messages:  # an empty bucket
            return self
        messages = []
        for index, new in enumerate(other.messages):
            first = self.messages[index] if self.messages else ()
            nodes = {message.node_id for message in first}
            messages.append((*first, *(message for message in new if message.node_id not in nodes)))
        return BucketSummary(
            self.events + other.events, self.erased + other.erased, self.masked or other.masked, tuple(messages)
        )


class BucketSimulator:
    """Simulates the buckets of one task."""

    def __init__(self, task: BucketTask) -> None:
        self._folder = Path(task.folder)
        self._until = task.until
        self._automations = [payload.automation() for payload in task.automations]

    def simulate(self, bucket: int) -> BucketSummary:
        """Simulate one bucket and write the results; an empty bucket writes nothing."""
        events = read_bucket(self._folder / EVENTS, bucket)
        if events is None:
            return BucketSummary()
        contacts = _read_contacts(read_bucket(self._folder / CONTACTS, bucket))
        messages = read_bucket(self._folder / MESSAGES, bucket)
        other_messages: dict[str, list[datetime]] = {}
        if messages is not None:
            by_contact = messages.group_by("contact_id").agg(pl.col("created_at").sort())
            other_messages = dict(by_contact.iter_rows())
        simulations = [_Simulation(automation) for automation in self._automations]
        erased = 0
        # Sorted by contact, then as the engine saw the events; ids are UUIDv7 and order events with the same time.
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
            settings = BacktestSettings(self._until, other_messages_at=other_messages.get(contact_id, ()))
            for simulation in simulations:
                simulation.add_contact(contact, records, settings)
        for number, simulation in enumerate(simulations):
            simulation.write(self._folder / str(number), bucket)
        emails = [contact.identifiers.email for contact in contacts.values()]
        masked = any(email is not None and email == mask_email(email) for email in emails)
        first_messages = tuple(tuple(simulation.first_messages.values()) for simulation in simulations)
        return BucketSummary(events.height, erased, masked, first_messages)


class _Simulation:
    """The tables of one automation for one bucket, row by row."""

    def __init__(self, automation: SimulatedAutomation) -> None:
        self._prepared = prepare_backtest(automation)
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self.first_messages: dict[str, Message] = {}

    def add_contact(self, contact: ContactState, events: Sequence[EventRecord], settings: BacktestSettings) -> None:
        """Simulate the events of one contact and add the rows."""
        entries = messages = 0
        for entry in backtest(self._prepared, contact, events, settings):
            event, run = entry.event, entry.run
            error = run.error if run.state is State.DEAD else None
            ending = (run.state.value, run.outcome, run.node_id, error)
            self._rows[ENTRIES].append((event.id, contact.id, event.name, _micros(event.at), *ending))
            self._add_steps(contact.id, entry)
            entries += run.outcome not in TURNED_AWAY
            messages += sum(isinstance(effect, _TO_CONTACT) for record in entry.records for effect in record.effects)
        if entries:
            self._rows[CONTACT_TOTALS].append((contact.id, entries, messages))

    def write(self, folder: Path, bucket: int) -> None:
        """Write the tables."""
        for name, schema in SCHEMAS.items():
            # Times are integers until here, and cast as whole columns.
            integers = {column: pl.Int64 if kind == _TIME else kind for column, kind in schema.items()}
            rows = pl.DataFrame(self._rows[name], schema=integers, orient="row").cast(pl.Schema(schema))
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows.write_parquet(folder / name / f"{bucket:06}.parquet")

    def _add_steps(self, contact_id: str, entry: SimulatedEntry) -> None:
        node_id = None
        for record in entry.records:
            step = record.step
            arrives = step.node_id != node_id  # False for a retry or the end of a wait: the entry was there before
            columns = (step.node_id, step.kind, _micros(step.at), step.outcome, step.handle, step.detail.get("cause"))
            self._rows[STEPS].append((entry.event.id, contact_id, *columns, arrives))
            node_id = step.node_id
            for effect in record.effects:
                if isinstance(effect, Message):
                    self.first_messages.setdefault(effect.node_id, effect)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _read_contacts(rows: pl.DataFrame | None) -> dict[str, ContactState]:
    contacts: dict[str, ContactState] = {}
    if rows is None:
        return contacts
    # A contact is read once for each part of the period in which it has events, so there may be several rows of it.
    for contact_id, wallet, email, external_id, attributes, tags, opted_out, segments in rows.iter_rows():
        identifiers = Identifiers(wallet, email, external_id)
        contacts[contact_id] = ContactState(
            contact_id, identifiers, decode(attributes.encode()), tuple(tags), tuple(segments), tuple(opted_out)
        )
    return contacts
