"""Recent events with their outcomes: as a frame, or one by one as they arrive.

The server keeps rejected events and duplicates for seven days, and of a rejected event only the keys and the types of
the values.
"""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import ceil, inf
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.html import TableView, moment, printable_text, table_columns
from workbench.display.words import quantity, short
from workbench.errors import ConnectionFailedError, UnavailableError, UnknownOutcomeError
from workbench.language.codec import decode, encode
from workbench.language.responses import MisspeltFieldView, RecentEvent

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.widgets import LiveView, Row, TailWindow

Outcomes: TypeAlias = str | Iterable[str] | None

_PATH = "/events/recent"
_MAX_STREAM_S = 86_400  # the server ends a stream after a day
_RECONNECT_PAUSES_S = (0.2, 0.6, 2.0, 5.0)
_MAX_CELL_LENGTH = 160  # characters


class ReceivedEvent(RecentEvent, frozen=True, rename="camel"):
    """An event and its outcome: accepted, deduplicated, dry_run or rejected.

    `field`, `error` and `body` are set for rejected events; `body` has the type in place of each value.
    """

    def sentence(self) -> str:
        """Return the outcome as a sentence."""
        match self.outcome:
            case "accepted":
                return f"started {quantity(self.entries, 'automation')}" if self.entries else "started nothing"
            case "deduplicated":
                return "a duplicate by its idempotency key: nothing was stored"
            case "dry_run":
                return f"would start {quantity(self.matched_automations or 0, 'automation')}"
            case _:
                return self.error or ""

    @printable_text
    def __repr__(self) -> str:
        return f"{moment(self.at)}  {self.outcome:<12}  {self.event or '(no name)'}: {self.sentence()}"


class TailMessage(msgspec.Struct, frozen=True):
    """An event and the cursor after it. Without an event it is a heartbeat, or with `lost` a lost connection."""

    cursor: str
    event: ReceivedEvent | None = None
    lost: str = ""


class EventTail:
    """Events as they arrive: iterate over it with `for`, which ends after the given seconds or when interrupted.

    At the end of a cell the events are displayed: in a notebook as a live table, elsewhere as lines.
    """

    def __init__(self, connection: Connection, outcomes: Outcomes, seconds: float | None) -> None:
        self._connection = connection
        self._outcomes = _joined(outcomes)
        self._seconds = inf if seconds is None else seconds

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """Yield events from now on. When the connection breaks or the server restarts, it resumes at the last event."""
        return (message.event for message in self.follow() if message.event is not None)

    def follow(self, cursor: str = "", *, keep_trying: bool = False) -> Iterator[TailMessage]:
        """Yield events after `cursor` (default: from now on), heartbeats and lost connections.

        Raises the connection's error if the first connection fails, or four attempts to reconnect fail; with
        `keep_trying` it reconnects until the tail's time is over.
        """
        until = environment.monotonic_s() + self._seconds
        pauses = iter(_RECONNECT_PAUSES_S)
        while (left_s := until - environment.monotonic_s()) > 0:
            pause = _RECONNECT_PAUSES_S[0]
            try:
                for message in self._connect(cursor, left_s):
                    cursor, pauses = message.cursor, iter(_RECONNECT_PAUSES_S)
                    yield message
            except (ConnectionFailedError, UnavailableError, UnknownOutcomeError) as error:
                pause = next(pauses, _RECONNECT_PAUSES_S[-1] if keep_trying else 0.0)
                # Without a cursor nothing was received yet, and a wrong URL should be reported at once.
                if not pause or not (cursor or keep_trying):
                    raise
                yield TailMessage(cursor, lost=str(error))
            environment.sleep(pause)

    def _connect(self, cursor: str, left_s: float) -> Iterator[TailMessage]:
        """Yield the messages of one connection, for about `left_s` seconds."""
        seconds = None if left_s > _MAX_STREAM_S else ceil(left_s)  # the service takes whole seconds
        with self._connection.stream_lines(
            _PATH, outcome=self._outcomes, after=cursor or None, seconds=seconds
        ) as lines:
            event = None
            for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    cursor = value
                elif name == "data":
                    event = msgspec.convert(decode(value.encode()), ReceivedEvent)
                elif not name:
                    # A message of an event stream ends with an empty line. A comment (an empty name) is a heartbeat.
                    yield TailMessage(cursor, event)
                    event = None

    def _ipython_display_(self) -> None:
        if environment.in_kernel():
            self.live_view().show()
            return
        try:
            for event in self:
                sys.stdout.write(f"{event!r}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            return

    def _display_(self) -> "TailWindow":  # marimo
        view = self.live_view()
        view.answer({"ask": "here"})
        return view.window

    def live_view(self) -> "LiveView":
        """Return the live table of a notebook; `.show()` displays it."""
        from workbench.display.widgets import LiveView

        return LiveView(lambda cursor: map(_widget_row, self.follow(cursor, keep_trying=True)))

    @printable_text
    def __repr__(self) -> str:
        return "Events as they arrive: for event in wb.events.tail(seconds=30): print(event)"


def _widget_row(message: TailMessage) -> "tuple[str, Row | None, str]":
    """Return the cursor, the row of an event, and the reason for a lost connection, for the live view."""
    event = message.event
    if event is None:
        return message.cursor, None, message.lost
    content = event.payload if event.outcome in ("accepted", "dry_run") else event.body
    label = "body (types in place of values)" if event.outcome == "rejected" else "payload"
    detail = {"contact": event.contact_id, "idempotency key": event.idempotency_key, label: content}
    present = {name: value for name, value in detail.items() if value is not None}
    row: Row = {
        "at": event.at.strftime("%H:%M:%S"),
        "outcome": event.outcome,
        "event": event.event or "(no name)",
        "result": event.sentence(),
        "detail": msgspec.json.format(encode(present), indent=2).decode(),
    }
    return message.cursor, row, ""


def recent(connection: Connection, outcomes: Outcomes, limit: int) -> "pl.DataFrame":
    """Return the newest events as a frame, newest last."""
    from workbench.display.frame import shown_frame

    events = _newest(connection, _joined(outcomes), limit)
    titles = ("at (UTC)", "outcome", "event", "result", "idempotency key", "contact")
    rows = []
    for event in events:
        ids = (short(event.idempotency_key), short(event.contact_id))
        rows.append((moment(event.at), event.outcome, event.event or "", event.sentence(), *ids))
    empty = "No events yet. wb.events.send(…) sends one."
    view = TableView(table_columns(*titles), rows, f"Events: {len(events)}", empty)
    return shown_frame(view, events, **_RECENT_COLUMNS)


def rejected(connection: Connection, limit: int) -> "pl.DataFrame":
    """Return the newest rejected events as a frame, newest last."""
    from workbench.display.frame import shown_frame

    events = _newest(connection, "rejected", limit)
    titles = ("at (UTC)", "event", "error", "body (types in place of values)")
    rows = []
    for event in events:
        body = "" if event.body is None else encode(event.body).decode()
        cell = body if len(body) <= _MAX_CELL_LENGTH else f"{body[:_MAX_CELL_LENGTH]}…"
        rows.append((moment(event.at), event.event or "", event.error or "", cell))
    note = "Requests with an invalid key (401, 403) or over the rate limit (429) are not recorded."
    empty = f"No event was rejected in the last seven days. {note}"
    view = TableView(table_columns(*titles), rows, f"Rejected events: {len(events)}", empty, note)
    return shown_frame(view, events, **_REJECTED_COLUMNS)


def misspelt(connection: Connection) -> "pl.DataFrame":
    """Return the misspelt fields of accepted events as a frame, the most frequent first."""
    from workbench.display.frame import shown_frame

    fields = msgspec.convert(connection.get("/events/misspelt")["fields"], list[MisspeltFieldView])
    titles = ("warning", "events", "last at (UTC)", "key", "name of the key")
    rows = [(field.warning, field.count, moment(field.last_at), field.key, field.key_name) for field in fields]
    empty = "No field of the last seven days looks misspelt."
    view = TableView(table_columns(*titles, numbers=("events",)), rows, f"Misspelt fields: {len(fields)}", empty)
    return shown_frame(view, fields, **_MISSPELT_COLUMNS)


_MISSPELT_COLUMNS = {
    "field": str,
    "warning": str,
    "count": int,
    "last_at": datetime,
    "key": str,
    "key_name": str,
    "key_id": str,
}
_REJECTED_COLUMNS = {"at": datetime, "event": str, "field": str, "error": str, "body": dict}
_RECENT_COLUMNS = {
    "at": datetime,
    "outcome": str,
    "event": str,
    "error": str,
    "idempotency_key": str,
    "contact_id": str,
    "payload": dict,
    "entries": int,
    "matched_automations": int,
    "field": str,
    "body": dict,
    "id": str,
}


def _newest(connection: Connection, outcomes: str | None, limit: int) -> list[ReceivedEvent]:
    return msgspec.convert(connection.get(_PATH, outcome=outcomes, limit=limit)["events"], list[ReceivedEvent])


def _joined(outcomes: Outcomes) -> str | None:
    return outcomes if outcomes is None or isinstance(outcomes, str) else ",".join(outcomes)
