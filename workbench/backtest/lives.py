"""One bucket: the events of some contacts in, what the automations would have done with them out. No network."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from api.language.backtest import Circumstances, Entry, Stored, backtest, prepare
from api.language.codec import decode
from api.language.contact import Contact
from api.language.effect import EmailMessage, InappMessage, Message, WebhookMessage
from api.language.email import mask_email
from api.language.event import Identifiers
from api.language.run import State
from api.language.simulate import Automation
from workbench.backtest import spool
from workbench.backtest.order import Lived, Order

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


class Lives:
    """The lives that one order is about."""

    def __init__(self, order: Order) -> None:
        self._folder = Path(order.folder)
        self._until = order.until
        self._automations = [each.automation() for each in order.subjects]

    def live(self, bucket: int) -> Lived:
        """Live through a bucket and write what came of it; nothing is written for one that has no events."""
        events = spool.read(self._folder / EVENTS, bucket)
        if events is None:
            return Lived()
        known = _contacts(spool.read(self._folder / CONTACTS, bucket))
        sent = _moments(spool.read(self._folder / MESSAGES, bucket))
        sides = [_Side(each) for each in self._automations]
        erased = 0
        for contact_id, rows in groupby(_rows(events), itemgetter(0)):
            contact = known.get(contact_id)
            if contact is None:
                erased += 1
                continue
            stored = [_stored(row) for row in rows]
            around = Circumstances(self._until, others_at=sent.get(contact_id, ()))
            for side in sides:
                side.live(contact, stored, around)
        for number, side in enumerate(sides):
            side.write(self._folder / str(number), bucket)
        masked = any(_is_masked(each.identifiers.email) for each in known.values())
        return Lived(events.height, erased, masked, tuple(tuple(side.first_messages.values()) for side in sides))


class _Side:
    """What one automation does to the contacts of a bucket: tables, row by row."""

    def __init__(self, automation: Automation) -> None:
        self._prepared = prepare(automation)
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self.first_messages: dict[str, Message] = {}

    def live(self, contact: Contact, events: Sequence[Stored], around: Circumstances) -> None:
        """Note all that becomes of one contact."""
        entries = messages = 0
        for entry in backtest(self._prepared, contact, events, around):
            event, run = entry.event, entry.run
            error = run.error if run.state is State.DEAD else None
            ending = (run.state.value, run.outcome, run.node_id, error)
            self._rows[ENTRIES].append((event.id, contact.id, event.name, _micros(event.at), *ending))
            self._note_steps(contact.id, entry)
            entries += run.outcome not in TURNED_AWAY
            messages += sum(isinstance(each, _TO_PEOPLE) for told in entry.told for each in told.effects)
        if entries:
            self._rows[PEOPLE].append((contact.id, entries, messages))

    def write(self, folder: Path, bucket: int) -> None:
        """Write the tables."""
        for name, schema in SCHEMAS.items():
            numbers = {column: pl.Int64 if kind == _MOMENT else kind for column, kind in schema.items()}
            rows = pl.DataFrame(self._rows[name], schema=numbers, orient="row").cast(pl.Schema(schema))
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows.write_parquet(folder / name / f"{bucket:06}.parquet")

    def _note_steps(self, contact_id: str, entry: Entry) -> None:
        entry_id, rows, node_id = entry.event.id, self._rows[STEPS], None
        for told in entry.told:
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


def _stored(row: tuple[Any, ...]) -> Stored:
    _, at, event_id, name, payload, wallet, email, external_id, source = row
    sent = Identifiers(wallet, email, external_id)
    return Stored(event_id, name, _EPOCH + timedelta(microseconds=at), sent, payload.encode(), source)


def _contacts(rows: pl.DataFrame | None) -> dict[str, Contact]:
    """Return contacts by id; each may have come more than once."""
    return {} if rows is None else {row[0]: _contact(row) for row in rows.iter_rows()}


def _contact(row: tuple[Any, ...]) -> Contact:
    contact_id, wallet, email, external_id, attributes, tags, opted_out, segments = row
    who = Identifiers(wallet, email, external_id)
    return Contact(contact_id, who, decode(attributes.encode()), tuple(tags), tuple(segments), tuple(opted_out))


def _is_masked(email: str | None) -> bool:
    return email is not None and email == mask_email(email)


def _moments(rows: pl.DataFrame | None) -> dict[str, list[datetime]]:
    """Return when others sent messages, by contact and in order."""
    if rows is None:
        return {}
    grouped = rows.group_by("contact_id").agg(pl.col("created_at").sort())
    return dict(grouped.iter_rows())
