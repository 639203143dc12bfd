"""What came in lately and what became of it: as a frame, or one by one as it comes.

Refusals and duplicates are kept for seven days. Of a refused event only the keys are kept, and types where its values stood.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from math import ceil, inf
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from api.language.codec import decode, encode
from workbench import surroundings
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.display.table import Column
from workbench.display.words import counted, short
from workbench.errors import UnavailableError, UnknownOutcomeError, UnreachableError

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.tail import Following, Row

_PATH = "/events/recent"
_LONGEST = 86_400  # seconds that the server follows at most
_FITTING = 160  # characters
_PAUSES = (0.2, 0.6, 2.0, 5.0)

Outcomes: TypeAlias = str | Iterable[str] | None


class RecentEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event and its outcome: accepted, deduplicated, dry_run or rejected."""

    id: str
    at: datetime
    outcome: str
    event: str | None
    contact_id: str | None = None
    idempotency_key: str | None = None
    payload: Any = None
    field: str | None = None
    error: str | None = None
    body: Any = None
    matched_automations: int | None = None
    entries: int | None = None

    def sentence(self) -> str:
        """Say what became of it."""
        match self.outcome:
            case "accepted":
                return f"started {counted(self.entries, 'automation')}" if self.entries else "started nothing"
            case "deduplicated":
                return "known by its idempotency key, so nothing happened again"
            case "dry_run":
                return f"would start {counted(self.matched_automations or 0, 'automation')}"
            case _:
                return self.error or ""

    def __repr__(self) -> str:
        return f"{moment(self.at)}  {self.outcome:<12}  {self.event or '(no name)'}: {self.sentence()}"


class Step(msgspec.Struct, frozen=True):
    """An event with the cursor that goes on after it; without one a heartbeat, or what broke the connection."""

    cursor: str
    event: RecentEvent | None = None
    lost: str = ""


class Tail:
    """Events as they come. Go through it with `for`, which ends after its seconds or when it is interrupted.

    At the end of a cell it shows itself: in a notebook as a live table, elsewhere as lines.
    """

    def __init__(self, connection: Connection, outcomes: Outcomes, seconds: float | None) -> None:
        self._connection = connection
        self._outcomes = _listed(outcomes)
        self._seconds = inf if seconds is None else seconds

    def __iter__(self) -> Iterator[RecentEvent]:
        """Yield what comes from now on; when the connection breaks, or the server makes way for another, go on from there."""
        return (step.event for step in self.follow() if step.event is not None)

    def follow(self, cursor: str = "", *, patient: bool = False) -> Iterator[Step]:
        """Yield what comes from now, or from a cursor, on, and heartbeats, and losses; `patient`: try to connect for ever."""
        until = surroundings.seconds() + self._seconds
        pauses = iter(_PAUSES)
        while (left := until - surroundings.seconds()) > 0:
            pause = _PAUSES[0]
            try:
                for step in self._messages(cursor, left):
                    cursor, pauses = step.cursor, iter(_PAUSES)
                    yield step
            except (UnreachableError, UnavailableError, UnknownOutcomeError) as error:
                pause = next(pauses, _PAUSES[-1] if patient else 0.0)
                if not pause or not (cursor or patient):
                    raise
                yield Step(cursor, lost=str(error))
            surroundings.sleep(pause)

    def _messages(self, cursor: str, left: float) -> Iterator[Step]:
        """Yield events with their cursors, and heartbeats, for about `left` seconds."""
        seconds = None if left > _LONGEST else ceil(left)
        with self._connection.lines(_PATH, outcome=self._outcomes, after=cursor or None, seconds=seconds) as lines:
            event = None
            for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    cursor = value
                elif name == "data":
                    event = msgspec.convert(decode(value.encode()), RecentEvent)
                elif not name:  # the end of a message
                    yield Step(cursor, event)
                    event = None

    def _ipython_display_(self) -> None:
        if surroundings.in_kernel():
            self._window().show()
            return
        try:
            for event in self:
                sys.stdout.write(f"{event!r}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            return

    def _window(self) -> "Following":
        from workbench.display.tail import Following

        return Following(lambda cursor: map(_shown, self.follow(cursor, patient=True)))

    def __repr__(self) -> str:
        return "Events as they come: for event in wb.events.tail(seconds=30): print(event)"


def recent(connection: Connection, outcomes: Outcomes, limit: int) -> "pl.DataFrame":
    """Return the newest events as a frame, the newest last."""
    events = _newest(connection, _listed(outcomes), limit)
    titles = ("at (UTC)", "outcome", "event", "what became of it", "idempotency key", "contact")
    rows = [
        (moment(e.at), e.outcome, e.event or "", e.sentence(), short(e.idempotency_key), short(e.contact_id))
        for e in events
    ]
    return _frame(events, _NAMES, titles, rows, title=f"Events: {len(events)}", empty=_NONE)


def rejected(connection: Connection, limit: int) -> "pl.DataFrame":
    """Return the newest refusals as a frame, the newest last."""
    events = _newest(connection, "rejected", limit)
    titles = ("at (UTC)", "event", "why it was refused", "what was sent, types for values")
    rows = [(moment(e.at), e.event or "", e.error or "", _begun(_json(e.body) or "")) for e in events]
    title = f"Refused events: {len(events)}"
    return _frame(events, _WHY, titles, rows, title=title, note=_NO_TRACE, empty=f"{_NONE_REFUSED} {_NO_TRACE}")


_WHY = ("at", "event", "field", "error", "body")
_NAMES = (
    *("at", "outcome", "event", "error", "idempotency_key", "contact_id", "payload"),
    *("entries", "matched_automations", "field", "body", "id"),
)
_NONE = "None yet. wb.events.send(…) sends one."
_NONE_REFUSED = "Nothing was refused in the last seven days."
_NO_TRACE = "What was refused for its key or its rate (401, 403, 429) leaves no trace."


def _newest(connection: Connection, outcomes: str | None, limit: int) -> list[RecentEvent]:
    return msgspec.convert(connection.get(_PATH, outcome=outcomes, limit=limit)["events"], list[RecentEvent])


def _shown(step: Step) -> "tuple[str, Row | None, str]":
    event = step.event
    if event is None:
        return step.cursor, None, step.lost
    about = event.payload if event.outcome in ("accepted", "dry_run") else event.body
    said = "what was sent, types for values" if event.outcome == "rejected" else "payload"
    detail = {"contact": event.contact_id, "idempotency key": event.idempotency_key, said: about}
    known = {name: value for name, value in detail.items() if value is not None}
    row: Row = {
        "at": event.at.strftime("%H:%M:%S"),
        "outcome": event.outcome,
        "event": event.event or "(no name)",
        "said": event.sentence(),
        "detail": msgspec.json.format(encode(known), indent=2).decode(),
    }
    return step.cursor, row, ""


def _listed(outcomes: Outcomes) -> str | None:
    return outcomes if outcomes is None or isinstance(outcomes, str) else ",".join(outcomes)


def _frame(
    events: Sequence[RecentEvent],
    names: Sequence[str],
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    **said: str,
) -> "pl.DataFrame":
    import polars as pl

    from workbench.display.frame import Look, shown

    types: dict[str, pl.DataType] = {
        "at": pl.Datetime("us", "UTC"),
        "entries": pl.Int64(),
        "matched_automations": pl.Int64(),
    }
    data = {name: [_cell(event, name) for event in events] for name in names}
    frame = pl.DataFrame(data, schema={name: types.get(name, pl.String()) for name in names})
    return shown(frame, Look(tuple(map(Column, titles)), rows, **said))


def _cell(event: RecentEvent, name: str) -> Any:
    value = getattr(event, name)
    return _json(value) if name in ("payload", "body") else value


def _begun(text: str) -> str:
    """Return a text that fits into a line, of which the frame has the rest."""
    return text if len(text) <= _FITTING else f"{text[:_FITTING]}…"


def _json(value: Any) -> str | None:
    return None if value is None else encode(value).decode()
