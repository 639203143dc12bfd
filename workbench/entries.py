"""Entries: one per automation and event, with their steps and messages, and the ones that failed permanently.

Waiting for an entry polls it, at growing intervals of up to a second. Failed entries ("dead letters") are grouped by
cause and can be replayed: a message keeps its id, so a receiver recognizes one that it already got.
"""

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display import words
from workbench.display.graph import LOOKS, explanations, path_of, picture, run_page
from workbench.display.html import (
    ProgressLine,
    TableColumn,
    TableSequence,
    TableView,
    html,
    moment,
    printable_text,
    table_columns,
)
from workbench.display.words import join_or, quantity
from workbench.errors import (
    InvalidArgumentError,
    InvalidRequestError,
    NotFoundError,
    WaitTimeoutError,
    WorkbenchError,
    usage_example,
)
from workbench.language.body import is_id
from workbench.language.channel import Message
from workbench.language.graph import Graph, read_graph
from workbench.language.responses import DeadLetterView, EntryMoveView, EntryView
from workbench.language.run import TERMINAL, State, Step
from workbench.language.trigger import Trigger, read_trigger

if TYPE_CHECKING:
    import polars as pl

Until: TypeAlias = Literal["ended", "waiting"]
"""When `wait` returns: after the entry has ended, or also once it waits for a time or an event."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0  # most entries end within a second; a long wait should cost few requests


class _EntryVersion(msgspec.Struct, frozen=True):
    """The version that an entry runs on, to draw its path."""

    name: str
    trigger: Trigger
    graph: Graph


class EntryMove(EntryMoveView, frozen=True, rename="camel"):
    """A move of an entry to another version, or the reason why it stayed."""

    @printable_text
    def __str__(self) -> str:
        start = f"version {self.from_version}"
        if self.at is None:
            return f"stayed on {start} when version {self.to_version} was published: {self.reason}"
        end = f"version {self.to_version} on {moment(self.at)} UTC"
        steps = "" if self.from_node_id == self.node_id else f", from {self.from_node_id} to {self.node_id}"
        back = "" if self.moved_back_at is None else f"; moved back on {moment(self.moved_back_at)} UTC"
        return f"moved from {start} to {end}{steps}{back}"


class Entry:
    """One contact's passage through an automation, displayed as path, messages and steps.

    `event_id`: the event that started it, as in `app_events.id`. `contact_id`: as in `contacts.id`. `state`: pending,
    running, waiting, retrying, paused, completed, exited, cancelled or dead. `ended`: whether the state is final.
    `outcome`: why it ended, in one word; None until it has ended. `error`: the last error. `attempts`: the number of
    attempts of its current step. `steps`: what happened, in order. `messages`: those that it sent or tried to send;
    the others are steps with the outcome `skipped` or `undeliverable`. `moves`: those to other versions, also those
    that left it where it was, with the reason.
    """

    def __init__(self, connection: Connection, fields: dict[str, Any]) -> None:
        self._connection = connection
        self._version: _EntryVersion | None = None
        self._show(fields)

    def _show(self, fields: dict[str, Any]) -> None:
        row = self._row = msgspec.convert(fields, EntryView)
        self.id, self.automation_id = row.id, row.automation_id
        self.event_id, self.contact_id = row.event_id, row.contact_id
        self.state, self.ended = row.state, row.state in TERMINAL
        self.outcome, self.error, self.attempts = row.outcome, row.last_error, row.attempts
        # The answer for a list of entries has neither.
        self.steps = msgspec.convert(fields.get("steps", ()), tuple[Step, ...])
        written = [message for message in fields.get("messages", ()) if message["body"] is not None]
        self.messages = msgspec.convert(written, tuple[Message, ...])
        self.moves = msgspec.convert(fields.get("moves", ()), tuple[EntryMove, ...])

    def refresh(self) -> "Entry":
        """Read the entry again, with its steps and messages, and return it."""
        self._show(self._connection.get(f"/entries/{self.id}"))
        return self

    def wait(self, timeout: float = 30.0, *, until: Until = "ended") -> "Entry":
        """Return the entry once it has ended, or with `until="waiting"` also once it waits.

        Raises WaitTimeoutError after `timeout` seconds.
        """
        if until not in get_args(Until):
            raise InvalidArgumentError(f'until={until!r}: write until="ended" or until="waiting"')
        progress, deadline, pause_s = ProgressLine(), environment.monotonic_s() + timeout, _FIRST_PAUSE_S
        while not self.refresh().ended and self.state.value != until:
            progress.show(self._progress_text(), self.state.value, LOOKS.get(self.state, "busy"))
            if environment.monotonic_s() >= deadline:
                raise WaitTimeoutError(
                    f"the entry is still {self.state.value} after {timeout:g} seconds{self._error_suffix()}. "
                    "Call .wait() again, or look at it with .refresh()"
                )
            environment.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
        progress.show(self._progress_text(), self.state.value, LOOKS.get(self.state, "busy"))
        return self

    def replay(self) -> "Entry":
        """Retry an entry that failed permanently, from the step that failed, and return it.

        Raises InvalidRequestError if the entry is in another state.
        """
        if self.state is not State.DEAD:
            raise InvalidRequestError(
                f"only an entry that failed permanently can be replayed; this one is {self.state.value}"
            )
        self._connection.post(f"/entries/{self.id}/replay")
        return self.refresh()

    def _read_version(self) -> _EntryVersion | None:
        """Return the version it runs on; None if nothing was published, or the key may not read automations."""
        number = self._row.automation_version
        if self._version is None and number is not None:
            path = f"/automations/{self.automation_id}"
            with contextlib.suppress(WorkbenchError):  # an entry is shown without its picture rather than not at all
                versions = self._connection.get(f"{path}/versions")["versions"]
                version = next((version for version in versions if version["version"] == number), None)
                if version is not None:
                    trigger, graph = read_trigger(version["triggerSpec"]), read_graph(version["graph"])
                    if isinstance(trigger, Trigger) and isinstance(graph, Graph):
                        name = str(self._connection.get(path)["name"])
                        self._version = _EntryVersion(name, trigger, graph)
        return self._version

    def _progress_text(self) -> str:
        version = self._read_version()
        at = f" at {self._row.node_id}" if self._row.node_id and not self.ended else ""
        return f"{self._row.event} → {version.name if version else 'automation'}{at}{self._error_suffix()}"

    def _error_suffix(self) -> str:
        return f" ({self.error})" if self.error and not self.ended else ""

    @printable_text
    def __repr__(self) -> str:
        lines = [f"Entry {self.id}: {words.ending(self.state, self.outcome, self.error)}"]
        lines += [
            f"  {number}. {step.node_id}: {words.outcome(step.outcome, step.kind)}"
            for number, step in enumerate(self.steps, 1)
        ]
        lines += [f"  → {words.message_line(message)}" for message in self.messages]
        lines += [f"  {move}" for move in self.moves]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        row, version = self._row, self._read_version()
        # An entry that succeeded is described by its effects, any other by its end.
        effects = words.effects(len(self.messages), words.contact_writes(self.steps), done=True)
        headline = words.ending(self.state, self.outcome, self.error).removesuffix(".")
        if self.state in (State.COMPLETED, State.EXITED) and effects:
            headline = effects[0].upper() + effects[1:]
        name = f"{version.name}, version {row.automation_version}" if version else "Automation"
        return run_page(
            self.state,
            headline=headline,
            subtitle=f"{name}; started by {row.event} on {moment(row.created_at)} UTC",
            note="; ".join(map(str, self.moves)),
            picture=picture(version.trigger, version.graph, path_of(self.steps)) if version else "",
            receives="What the contact receives",
            messages=self.messages,
            explanations=explanations((), self.steps),
            steps=self.steps,
            email_from="",
        )


class Entries(TableSequence[Entry]):
    """The entries of an automation, newest first; `latest` is the first of them."""

    @property
    def latest(self) -> Entry:
        """The newest entry. Raises NotFoundError if nothing has started the automation."""
        if not self:
            raise NotFoundError("nothing has started this automation yet")
        entry: Entry = self[0]
        return entry

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per entry: ids, state, outcome, step, attempts, last error and times."""
        from workbench.frames import frame_of

        names = ("id", "automation_id", "contact_id", "event_id", "event", "state", "outcome", "node_id", "last_error")
        numbers, times = {"automation_version": int, "attempts": int}, {"created_at": datetime, "updated_at": datetime}
        return frame_of([entry._row for entry in self], **dict.fromkeys(names, str), **numbers, **times)

    def _view(self) -> TableView:
        failed = any(entry.error for entry in self)  # without an error the table has no column for errors
        rows = []
        for entry in self:
            error = (entry.error or "",) if failed else ()
            started = moment(entry._row.created_at)
            ids = (words.short(entry.contact_id), words.short(entry.id))
            outcome = words.entry_outcome(entry.outcome)
            rows.append((started, entry._row.event or "", entry.state.value, outcome, *error, *ids))
        error_title = ("last error",) if failed else ()
        columns = table_columns("started (UTC)", "event", "state", "outcome", *error_title, "contact", "entry")
        note = "Show the newest with .latest" if self else ""
        return TableView(columns, rows, f"Entries: {len(self)}", "Nothing has started this automation yet.", note)


def list_entries(connection: Connection, automation_id: str, limit: int, state: str | None = None) -> Entries:
    """Return the newest entries of an automation, optionally those in one state.

    Those from before the first publication did nothing, and are left out. They are older than all others.
    """
    entries = _entries(connection, connection.get(f"/automations/{automation_id}/entries", limit=limit, state=state))
    return Entries(tuple(entry for entry in entries if entry.outcome != "no_published_version"))


def find_entry(connection: Connection, automation_id: str, event: str) -> Entry | None:
    """Return the automation's entry for an event, found by idempotency key or event id, or None."""
    # An idempotency key may look like a UUID, so it is tried first. The server refuses an event id that is not a UUID.
    entries = _entries(connection, connection.get("/entries", idempotencyKey=event))
    if not entries and is_id(event):
        entries = _entries(connection, connection.get("/entries", eventId=event))
    return next((entry for entry in entries if entry.automation_id == automation_id), None)


def read_entry(connection: Connection, entry_id: str) -> Entry:
    return Entry(connection, connection.get(f"/entries/{entry_id}"))


def _entries(connection: Connection, body: dict[str, Any]) -> Entries:
    return Entries(tuple(Entry(connection, fields) for fields in body["entries"]))


class DeadLetter(DeadLetterView, frozen=True, rename="camel"):
    """The failed entries with the same automation, cause and step. `attempts` is the maximum of the entries.

    `active`: the automation is on, so they can be replayed.
    """

    def error(self) -> str:
        """Return the last error, without the cause."""
        return (self.last_error or "").removeprefix(f"{self.cause}: ")


class ReplayResult(msgspec.Struct, frozen=True):
    """The numbers of entries that are retried, and that were `left` because their automation is inactive."""

    entries: int
    left: int = 0

    def sentence(self) -> str:
        if not self.entries:
            return "Nothing was replayed."
        verb = "is" if self.entries == 1 else "are"
        return f"{_entry_count(self.entries)} {verb} tried again, from the step that failed."

    def note(self) -> str:
        """Return how many were not replayed, and why; empty if all were."""
        if not self.left:
            return ""
        return f"{_entry_count(self.left)} of automations that are off were not replayed: .activate() first."

    @printable_text
    def __repr__(self) -> str:
        return " ".join(filter(None, (self.sentence(), self.note())))

    def _repr_html_(self) -> str:
        state, look = ("replayed", "good") if self.entries else ("nothing", "warn")
        return html("line.html.j2", text=self.sentence(), state=state, look=look, note=self.note(), block="")


class DeadLetters(TableSequence[DeadLetter]):
    """Failed entries by cause, the latest failure first. `replay()` retries all of them, or those of one cause."""

    def __init__(self, connection: Connection, letters: Iterable[DeadLetter], automation_id: str | None = None) -> None:
        super().__init__(tuple(letters))
        self._connection = connection
        self._automation_id = automation_id

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes, without duplicates."""
        return tuple(dict.fromkeys(letter.cause for letter in self if letter.cause))

    @usage_example('.replay() or .replay("no_wallet"); one entry: wb.entry("0198c0de-…").replay()')
    def replay(self, cause: str | None = None) -> ReplayResult:
        """Retry failed entries from the step that failed: all of them, or those of one cause.

        Messages already sent are not sent again. A message that may have arrived goes out again under the same id.
        """
        if cause is not None and cause not in self.causes:
            causes = f"the causes are {join_or(self.causes)}" if self.causes else "nothing has failed permanently"
            raise NotFoundError(f"no entry failed permanently with the cause {cause!r}: {causes}")
        selection = {"cause": cause, "automationId": self._automation_id}
        body = self._connection.post("/entries/replay", {name: value for name, value in selection.items() if value})
        selected = [letter for letter in self if cause in (None, letter.cause)]
        return ReplayResult(body["replayed"], sum(letter.entries for letter in selected if not letter.active))

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per automation, cause and step."""
        from workbench.frames import frame_of

        ids = {"automation_id": str, "automation": str, "active": bool, "cause": str, "node_id": str}
        counts = {"entries": int, "attempts": int, "last_error": str}
        return frame_of(self, **ids, **counts, first_at=datetime, last_at=datetime)

    def table(self) -> tuple[Sequence[TableColumn], Sequence[Sequence[Any]]]:
        """Return columns and rows; there is a column for the automation only when there can be several."""
        view = self._view()
        return view.columns, view.rows

    def _view(self) -> TableView:
        titles = ["cause", *(["automation"] if self._automation_id is None else [])]
        titles += ["step", "entries", "attempts", "last error", "last (UTC)"]
        columns = table_columns(*titles, numbers=("entries", "attempts"))
        rows = []
        for letter in self:
            name = letter.automation if letter.active else f"{letter.automation} (off)"
            automation = (name,) if self._automation_id is None else ()
            figures = (letter.entries, letter.attempts, letter.error(), moment(letter.last_at))
            rows.append((letter.cause or "", *automation, letter.node_id or "", *figures))
        if not rows:
            return TableView(columns, rows, "", "Nothing has failed permanently.")
        title = f"Failed permanently: {_entry_count(sum(letter.entries for letter in self))}"
        note = (
            'Replay all with .replay(), one cause with .replay("cause"). To list: wb.sql("SELECT * FROM dead_letters")'
        )
        return TableView(columns, rows, title, "", note)


def dead_letters(connection: Connection, automation_id: str | None = None) -> DeadLetters:
    letters = connection.get("/dead-letters", automationId=automation_id)["deadLetters"]
    return DeadLetters(connection, msgspec.convert(letters, list[DeadLetter]), automation_id)


def _entry_count(number: int) -> str:
    return quantity(number, "entry", "entries")
