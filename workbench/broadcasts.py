"""Broadcasts: an automation that is started for all contacts of a segment at once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from workbench.connection import Connection
from workbench.display import words
from workbench.display.html import (
    TableColumn,
    TableSequence,
    TableView,
    html,
    moment,
    plain,
    printable_text,
    table,
    table_columns,
)
from workbench.display.results import message_table, reason
from workbench.display.words import duration, quantity
from workbench.errors import InvalidArgumentError, usage_example
from workbench.language.responses import BroadcastPreview, BroadcastResults, BroadcastView

_LOOKS = {"planned": "warn", "running": "busy", "done": "good", "stopped": "bad"}


class BroadcastRecord(BroadcastView, frozen=True, rename="camel"):
    """A broadcast as the server returns it."""

    @property
    def recipients(self) -> int:
        """The number of contacts that it starts: those that were counted, and those that entered and left since."""
        return self.contacts + (self.entered or 0) - (self.departed or 0)

    def segment_name(self) -> str:
        return "all contacts" if self.segment is None else self.segment

    def sentence(self) -> str:
        """Return its progress, and how its recipients differ from the contacts that were counted."""
        text = f"{self.entries:,} of {quantity(self.recipients, 'contact')}"
        if self.state == "planned":
            text = f"{quantity(self.contacts, 'contact')} on {moment(self.at)} UTC"
        if self.entered or self.departed:
            text += f"; since {moment(self.watermark)} UTC {self.entered:,} entered and {self.departed:,} left"
        return f"{text}; {self.reason}" if self.reason not in (None, "stopped") else text


class Broadcast:
    """A broadcast, displayed with its progress.

    `state`: planned, running, done or stopped. `contacts`: how many were counted. `entered`, `departed`: how many
    entered and left since then, until it started; None before. `entries`: how many entries were made.
    """

    def __init__(self, connection: Connection, record: BroadcastRecord) -> None:
        self._connection = connection
        self._show(record)

    def _show(self, record: BroadcastRecord) -> Self:
        self._record = record
        self.id, self.state, self.segment, self.at = record.id, record.state, record.segment, record.at
        self.contacts, self.entered, self.departed = record.contacts, record.entered, record.departed
        self.entries = record.entries
        return self

    def refresh(self) -> Self:
        """Read its progress again, and return it."""
        return self._show(msgspec.convert(self._connection.get(f"/broadcasts/{self.id}"), BroadcastRecord))

    def results(self) -> "BroadcastReport":
        """Return what became of its entries and messages, and how many contacts reached the goal."""
        return msgspec.convert(self._connection.get(f"/broadcasts/{self.id}/results"), BroadcastReport)

    def stop(self) -> Self:
        """Make no further entries. Those that were made continue; `.deactivate()` of the automation cancels them."""
        return self._show(msgspec.convert(self._connection.post(f"/broadcasts/{self.id}/stop", {}), BroadcastRecord))

    @printable_text
    def __repr__(self) -> str:
        return f"Broadcast to {self._record.segment_name()}, {self.state}: {self._record.sentence()}"

    def _repr_html_(self) -> str:
        text = f"Broadcast to {self._record.segment_name()}: {self._record.sentence()}"
        share = self.entries / self._record.recipients if self._record.recipients else None
        look = _LOOKS.get(self.state, "busy")
        return html("line.html.j2", text=text, state=self.state, look=look, note="", block="", share=share)


class BroadcastReport(BroadcastResults, frozen=True, rename="camel"):
    """The results of a broadcast, displayed as a table with one row per step that sends messages.

    `entries`: their number by state. `goal`: None if the automation has none. `counted`: how many entries the figures
    are of; if `is_partial`, these are the first ones.
    """

    def headline(self) -> str:
        states = ", ".join(f"{number:,} {state}" for state, number in self.entries.items())
        return f"{quantity(self.counted, 'entry', 'entries')}: {states}." if states else "No entries yet."

    def notes(self) -> list[str]:
        """Return sentences: how many contacts reached the goal, and what the figures leave out."""
        lines = []
        if self.is_partial:
            lines.append(f"Only the first {self.counted:,} entries are counted, those of its oldest contacts.")
        if (goal := self.goal) is not None:
            within = duration(timedelta(seconds=goal.within_seconds))
            lines.append(f"Goal {goal.goal}: reached by {words.goal_share(goal.treated)} within {within} of the start.")
            if goal.held_out.contacts:
                lines.append(f"Held out: reached by {words.goal_share(goal.held_out)}.")
            if goal.unknown:
                contacts = quantity(goal.unknown, "contact")
                lines.append(f"{contacts} with too many events to look at: counted as not reaching it.")
        return lines

    def table(self) -> tuple[Sequence[TableColumn], list[tuple[str, ...]]]:
        """Return columns and one row per step."""
        return message_table(self.messages)

    @printable_text
    def __repr__(self) -> str:
        columns, rows = self.table()
        return "\n".join([self.headline(), *self.notes(), *([plain(columns, rows)] if rows else [])])

    def _repr_html_(self) -> str:
        columns, rows = self.table()
        note = " ".join(self.notes())
        return table(columns, rows, title=self.headline(), note=note, empty="No messages yet.")


class SendPreview:
    """A broadcast before it is sent: the number of `contacts` that it would start, and the ids of some (`sample`).

    `watermark`: the last refresh of the segment, up to which these contacts entered. `unreachable`: how many of the
    newest `sampled` contacts each message cannot go to, by cause. `warnings`: messages that have no texts in the
    locales of these contacts, or need values that they lack.
    """

    def __init__(self, connection: Connection, automation_id: str, body: dict[str, Any]) -> None:
        answer = connection.post(f"/automations/{automation_id}/broadcasts/preview", body)
        counted = msgspec.convert(answer, BroadcastPreview)
        self._connection, self._automation_id, self._body = connection, automation_id, body
        self.contacts, self.sample, self.watermark = counted.contacts, counted.sample, counted.watermark
        self.warnings, self.unreachable, self.sampled = counted.warnings, counted.unreachable, counted.sampled

    @usage_example(".send() or .send(at=datetime(2026, 12, 1, 9, tzinfo=UTC))")
    def send(self, *, at: datetime | None = None) -> Broadcast:
        """Send it; the broadcast says how many contacts entered and left since this preview."""
        counted = {"contacts": self.contacts, "watermark": self.watermark}
        return create_broadcast(self._connection, self._automation_id, self._body | counted, at)

    @printable_text
    def __repr__(self) -> str:
        return "\n".join([self._headline(), *self.notes()])

    def _repr_html_(self) -> str:
        note = "; ".join(self.notes())
        return html("line.html.j2", text=self._headline(), state="preview", look="busy", note=note, block="")

    def _headline(self) -> str:
        return f"{quantity(self.contacts, 'contact')} as of {moment(self.watermark)} UTC. Send with .send()"

    def notes(self) -> list[str]:
        """Return sentences: which contacts messages do not reach, and the warnings."""
        of = "" if self.sampled == self.contacts else f" of the newest {self.sampled:,}"
        unreachable = [
            f"{item.node_id} does not reach {quantity(item.contacts, 'contact')}{of}: {reason(item.cause)}"
            for item in self.unreachable
        ]
        return [*unreachable, *(f"{warning.node_id} {warning.message}" for warning in self.warnings)]


class Broadcasts(TableSequence[Broadcast]):
    """The newest broadcasts. `wb.broadcasts` reads them again each time."""

    def _view(self) -> TableView:
        columns = table_columns("at (UTC)", "to", "state", "progress", "broadcast")
        rows = [
            (moment(item.at), item._record.segment_name(), item.state, item._record.sentence(), item.id)
            for item in self
        ]
        empty = 'No broadcasts yet. wb.automation("News").send_to("vip") sends one.'
        return TableView(columns, rows, "Broadcasts", empty)


def list_broadcasts(connection: Connection) -> Broadcasts:
    records = msgspec.convert(connection.get("/broadcasts")["broadcasts"], list[BroadcastRecord])
    return Broadcasts(tuple(Broadcast(connection, record) for record in records))


def create_broadcast(
    connection: Connection, automation_id: str, body: dict[str, Any], at: datetime | None
) -> Broadcast:
    sent_at: Any = at  # a notebook does not enforce the annotation
    if at is not None and (not isinstance(sent_at, datetime) or at.tzinfo is None):
        raise InvalidArgumentError("at must be a datetime with a time zone: at=datetime(…, tzinfo=UTC)")
    answer = connection.post(f"/automations/{automation_id}/broadcasts", body | ({} if at is None else {"at": at}))
    return Broadcast(connection, msgspec.convert(answer, BroadcastRecord))


def recipients_of(segment: object, everyone: bool) -> dict[str, Any]:
    if everyone and segment is None:
        return {"all": True}
    name = getattr(segment, "name", segment)
    if not isinstance(name, str) or not name or everyone:
        raise InvalidArgumentError('name a segment: .send_to("vip"). For all contacts, write .send_to(everyone=True)')
    return {"segment": name}
