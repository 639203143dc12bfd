"""What is to be lived through, as it is handed to a process, and what is said of a bucket that is done.

One bucket: the events of some contacts in, what the automations would have done with them out. No network.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from workbench.backtest import buckets
from workbench.errors import InvalidAutomationError
from workbench.language.backtest import BacktestSettings, EventRecord, SimulatedEntry, backtest, prepare_backtest
from workbench.language.codec import decode, encode, normalise
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers, mask_email
from workbench.language.graph import Graph, read_graph
from workbench.language.run import EmailMessage, InappMessage, Message, State, WebhookMessage
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import Trigger, read_trigger


class AutomationPayload(msgspec.Struct, frozen=True):
    """An automation as JSON has it; by its id a split knows who goes where."""

    id: str
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    def automation(self) -> SimulatedAutomation:
        """Return what the interpreter runs; raise InvalidAutomationError when its shape is wrong. Compiles templates."""
        trigger, graph = read_trigger(normalise(self.trigger_spec)), read_graph(normalise(self.graph))
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            return SimulatedAutomation(trigger, graph, self.id)
        problems = [*(trigger if isinstance(trigger, tuple) else ()), *(graph if isinstance(graph, tuple) else ())]
        raise InvalidAutomationError("; ".join(map(str, problems)))


class BucketTask(msgspec.Struct, frozen=True):
    """What to do: for these automations, with the rows that lie in `folder`, until the time is over."""

    folder: str
    until: datetime
    subjects: tuple[AutomationPayload, ...]

    def line(self) -> bytes:
        """Return it as a line of JSON, numbers exact."""
        return encode(self) + b"\n"


class BucketSummary(msgspec.Struct, frozen=True):
    """What is said of a bucket: its events, how many of its contacts are erased, and the first message of each node by subject.

    `masked`: addresses came as `a•••@example.com`, for a key that may not see them.
    """

    events: int = 0
    erased: int = 0
    masked: bool = False
    messages: tuple[tuple[Message, ...], ...] = ()

    def line(self) -> bytes:
        """Return it as a line of JSON."""
        return encode(self) + b"\n"


def read_order(line: bytes) -> BucketTask:
    """Return the order in a line."""
    return msgspec.convert(decode(line), BucketTask)


def read_lived(line: bytes) -> BucketSummary:
    """Return what is said in a line."""
    return msgspec.convert(decode(line), BucketSummary)


EVENTS, CONTACTS, MESSAGES = "events", "contacts", "messages"
STEPS, ENTRIES, PEOPLE = "steps", "entries", "people"

_MOMENT = pl.Datetime("us", "UTC")
_TEXT = pl.String
SCHEMAS: dict[str, dict[str, Any]] = {
    STEPS: {"entry": _TEXT, "contact": _TEXT, "node": _TEXT, "kind": _TEXT, "at": _MOMENT, "outcome": _TEXT, "handle": _TEXT,
            "reason": _TEXT, "arrives": pl.Boolean},
    ENTRIES: {"entry": _TEXT, "contact": _TEXT, "event": _TEXT, "at": _MOMENT, "state": _TEXT, "outcome": _TEXT, "node": _TEXT,
              "error": _TEXT},
    PEOPLE: {"contact": _TEXT, "entries": pl.Int64, "messages": pl.Int64},
}  # fmt: skip
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_TO_PEOPLE = (InappMessage, EmailMessage)
TURNED_AWAY = frozenset({"reentry", "loop_guard"})


class BucketSimulation:
    """The lives that one order is about."""

    def __init__(self, order: BucketTask) -> None:
        self._folder = Path(order.folder)
        self._until = order.until
        self._automations = [each.automation() for each in order.subjects]

    def live(self, bucket: int) -> BucketSummary:
        """Live through a bucket and write what came of it; nothing is written for one that has no events."""
        events = buckets.read(self._folder / EVENTS, bucket)
        if events is None:
            return BucketSummary()
        known = _contacts(buckets.read(self._folder / CONTACTS, bucket))
        sent = _moments(buckets.read(self._folder / MESSAGES, bucket))
        sides = [_Side(each) for each in self._automations]
        erased = 0
        for contact_id, rows in groupby(_rows(events), itemgetter(0)):
            contact = known.get(contact_id)
            if contact is None:
                erased += 1
                continue
            stored = [_stored(row) for row in rows]
            around = BacktestSettings(self._until, other_messages_at=sent.get(contact_id, ()))
            for side in sides:
                side.live(contact, stored, around)
        for number, side in enumerate(sides):
            side.write(self._folder / str(number), bucket)
        masked = any(_is_masked(each.identifiers.email) for each in known.values())
        return BucketSummary(
            events.height, erased, masked, tuple(tuple(side.first_messages.values()) for side in sides)
        )


class _Side:
    """What one automation does to the contacts of a bucket: tables, row by row."""

    def __init__(self, automation: SimulatedAutomation) -> None:
        self._prepared = prepare_backtest(automation)
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self.first_messages: dict[str, Message] = {}

    def live(self, contact: ContactState, events: Sequence[EventRecord], around: BacktestSettings) -> None:
        """Note all that becomes of one contact."""
        entries = messages = 0
        for entry in backtest(self._prepared, contact, events, around):
            event, run = entry.event, entry.run
            error = run.error if run.state is State.DEAD else None
            ending = (run.state.value, run.outcome, run.node_id, error)
            self._rows[ENTRIES].append((event.id, contact.id, event.name, _micros(event.at), *ending))
            self._note_steps(contact.id, entry)
            entries += run.outcome not in TURNED_AWAY
            messages += sum(isinstance(each, _TO_PEOPLE) for told in entry.records for each in told.effects)
        if entries:
            self._rows[PEOPLE].append((contact.id, entries, messages))

    def write(self, folder: Path, bucket: int) -> None:
        """Write the tables."""
        for name, schema in SCHEMAS.items():
            numbers = {column: pl.Int64 if kind == _MOMENT else kind for column, kind in schema.items()}
            rows = pl.DataFrame(self._rows[name], schema=numbers, orient="row").cast(pl.Schema(schema))
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows.write_parquet(folder / name / f"{bucket:06}.parquet")

    def _note_steps(self, contact_id: str, entry: SimulatedEntry) -> None:
        entry_id, rows, node_id = entry.event.id, self._rows[STEPS], None
        for told in entry.records:
            step = told.step
            what = (step.node_id, step.kind, _micros(step.at), step.outcome, step.handle, step.detail.get("cause"))
            rows.append((entry_id, contact_id, *what, step.node_id != node_id))
            node_id = step.node_id
            for effect in told.effects:
                if isinstance(effect, InappMessage | EmailMessage | WebhookMessage):
                    self.first_messages.setdefault(effect.node_id, effect)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _rows(events: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Give the rows contact by contact, each contact's in the order in which the engine saw them."""
    return events.sort("contact_id", "created_at", "id").with_columns(pl.col("created_at").to_physical()).iter_rows()


def _stored(row: tuple[Any, ...]) -> EventRecord:
    _, at, event_id, name, payload, wallet, email, external_id, source = row
    sent = Identifiers(wallet, email, external_id)
    return EventRecord(event_id, name, _EPOCH + timedelta(microseconds=at), sent, payload.encode(), source)


def _contacts(rows: pl.DataFrame | None) -> dict[str, ContactState]:
    """Return contacts by id; each may have come more than once."""
    return {} if rows is None else {row[0]: _contact(row) for row in rows.iter_rows()}


def _contact(row: tuple[Any, ...]) -> ContactState:
    contact_id, wallet, email, external_id, attributes, tags, opted_out, segments = row
    who = Identifiers(wallet, email, external_id)
    return ContactState(contact_id, who, decode(attributes.encode()), tuple(tags), tuple(segments), tuple(opted_out))


def _is_masked(email: str | None) -> bool:
    return email is not None and email == mask_email(email)


def _moments(rows: pl.DataFrame | None) -> dict[str, list[datetime]]:
    """Return when others sent messages, by contact and in order."""
    if rows is None:
        return {}
    grouped = rows.group_by("contact_id").agg(pl.col("created_at").sort())
    return dict(grouped.iter_rows())
