"""Entries: one per automation and event, with what happened step by step. Watching one is polling it until it ends."""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from api.language.effect import Message
from api.language.graph import Graph, read_graph
from api.language.run import TERMINAL, State, Step
from api.language.trigger import Trigger, read_trigger
from workbench import surroundings
from workbench.connection import Connection
from workbench.display import words
from workbench.display.graph import picture, taken
from workbench.display.page import moment
from workbench.display.progress import Progress
from workbench.display.run import LOOKS, RunPage, whys
from workbench.display.table import Column, plain, table
from workbench.errors import DraftError, NotThereError, RefusedError, StillRunningError, WorkbenchError

if TYPE_CHECKING:
    import polars as pl

Until: TypeAlias = Literal["ended", "waiting"]
"""What an entry is watched for: until it ends, or also until it waits for time or an event."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class _Ran(msgspec.Struct, frozen=True):
    """What an entry ran: the version it entered, to draw the path on."""

    name: str
    trigger: Trigger
    graph: Graph


class _Stored(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    automation_id: str
    automation_version: int | None
    contact_id: str
    event_id: str
    event: str | None
    state: State
    outcome: str | None = None
    node_id: str | None = None
    attempts: int = 0
    last_error: str | None = None
    created_at: str = ""
    updated_at: str = ""
    steps: tuple[Step, ...] = ()
    messages: tuple[Message, ...] = ()


class Entry:
    """One contact's way through an automation. Shows the path, the messages and every step; `wait()` watches it end."""

    def __init__(self, connection: Connection, stored: _Stored) -> None:
        self._connection = connection
        self._stored = stored
        self._ran: _Ran | None = None

    @property
    def id(self) -> str:
        """The entry's id."""
        return self._stored.id

    @property
    def automation_id(self) -> str:
        """The id of the automation."""
        return self._stored.automation_id

    @property
    def event_id(self) -> str:
        """The id of the event that started it, as in `app_events.id`."""
        return self._stored.event_id

    @property
    def contact_id(self) -> str:
        """The id of the contact, as in `contacts.id`."""
        return self._stored.contact_id

    @property
    def state(self) -> State:
        """Where it stands: pending, running, waiting, retrying, completed, exited, cancelled or dead."""
        return self._stored.state

    @property
    def outcome(self) -> str | None:
        """Why it ended, in one word; None while it goes on."""
        return self._stored.outcome

    @property
    def error(self) -> str | None:
        """What went wrong last."""
        return self._stored.last_error

    @property
    def attempts(self) -> int:
        """How often its current step was tried."""
        return self._stored.attempts

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in TERMINAL

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happened, in order."""
        return self._stored.steps

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that it made."""
        return self._stored.messages

    def refresh(self) -> "Entry":
        """Read it again, with its steps and messages, and return it."""
        self._stored = msgspec.convert(self._connection.get(f"/entries/{self.id}"), _Stored)
        return self

    def wait(self, timeout: float = 30.0, *, until: Until = "ended") -> "Entry":
        """Watch until it ends, or until it waits, and return it; raise StillRunningError after `timeout` seconds."""
        if until not in get_args(Until):
            raise DraftError(f'until={until!r}: write until="ended" or until="waiting"')
        progress, deadline, pause = Progress(), surroundings.seconds() + timeout, _FIRST_PAUSE
        while not self.refresh().ended and self.state.value != until:
            progress.show(self._line(), self.state.value, LOOKS.get(self.state, "busy"))
            if surroundings.seconds() >= deadline:
                raise StillRunningError(
                    f"the entry is still {self.state.value} after {timeout:g} seconds{self._because()}. "
                    "Call .wait() again, or look at it with .refresh()"
                )
            surroundings.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        progress.show(self._line(), self.state.value, LOOKS.get(self.state, "busy"))
        return self

    def replay(self) -> "Entry":
        """Try again an entry that failed for good, from the step that failed; return it."""
        if self.state is not State.DEAD:
            raise RefusedError(f"only an entry that failed for good can be replayed; this one is {self.state.value}")
        self._connection.post(f"/entries/{self.id}/replay")
        return self.refresh()

    def _version(self) -> _Ran | None:
        """Return what it ran; None when nothing was published, or the key may not look."""
        number = self._stored.automation_version
        if self._ran is None and number is not None:
            with contextlib.suppress(WorkbenchError):  # the entry can be read without its picture
                self._ran = _ran(self._connection, self._stored.automation_id, number)
        return self._ran

    def _line(self) -> str:
        at = f" at {self._stored.node_id}" if self._stored.node_id and not self.ended else ""
        return f"{self._stored.event} → {ran.name if (ran := self._version()) else 'automation'}{at}{self._because()}"

    def _because(self) -> str:
        return f" ({self.error})" if self.error and not self.ended else ""

    def _ending(self) -> str:
        return words.ending(self.state, self.outcome, self.error)

    def _headline(self) -> str:
        deeds = words.deeds(len(self.messages), words.written(self.steps), done=True)
        if self.state in (State.COMPLETED, State.EXITED) and deeds:
            return deeds[0].upper() + deeds[1:]
        return self._ending().removesuffix(".")

    def __repr__(self) -> str:
        lines = [f"Entry {self.id}: {self._ending()}"]
        lines += [
            f"  {number}. {step.node_id}: {words.outcome(step.outcome)}" for number, step in enumerate(self.steps, 1)
        ]
        lines += [f"  → {words.line(message)}" for message in self.messages]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        stored, ran = self._stored, self._version()
        name = f"{ran.name}, version {stored.automation_version}" if ran else "Automation"
        return RunPage(
            headline=self._headline(),
            subtitle=f"{name}; started by {stored.event} on {moment(stored.created_at)} UTC",
            note="",
            state=self.state,
            picture=picture(ran.trigger, ran.graph, taken(self.steps)) if ran else "",
            receives="What the contact receives",
            messages=self.messages,
            whys=whys((), self.steps),
            steps=self.steps,
        ).html()


class Entries(Sequence[Entry]):
    """The entries of an automation, newest first; `latest` is the first of them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)

    @property
    def latest(self) -> Entry:
        """The newest entry; raises NotThereError when there is none."""
        if not self._entries:
            raise NotThereError("no event has started this automation yet")
        return self._entries[0]

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per entry."""
        import polars as pl

        rows = [msgspec.structs.asdict(each._stored) for each in self._entries]
        texts = ("id", "automation_id", "contact_id", "event_id", "event", "state", "outcome", "node_id", "last_error")
        data = {name: [row[name] for row in rows] for name in texts}
        return pl.DataFrame(data, schema=dict.fromkeys(texts, pl.String)).with_columns(
            pl.Series("automation_version", [row["automation_version"] for row in rows], pl.Int64),
            pl.Series("attempts", [row["attempts"] for row in rows], pl.Int64),
            *(
                pl.Series(name, [row[name] for row in rows], pl.String).str.to_datetime(time_zone="UTC", time_unit="us")
                for name in ("created_at", "updated_at")
            ),
        )

    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def _table(self) -> tuple[Sequence[Column], list[tuple[str, ...]]]:
        """Return columns and rows; errors have a column only when there are some."""
        failed = any(each.error for each in self)
        rows = []
        for each in self:
            stored = each._stored
            ids = (words.short(each.contact_id), words.short(each.id))
            error = (each.error or "",) if failed else ()
            ending = words.ended(each.outcome)
            rows.append((moment(stored.created_at), stored.event or "", each.state.value, ending, *error, *ids))
        titles = (
            "started (UTC)",
            "event",
            "state",
            "outcome",
            *(("last error",) if failed else ()),
            "contact",
            "entry",
        )
        return tuple(map(Column, titles)), rows

    def __repr__(self) -> str:
        return plain(*self._table(), _NONE)

    def _repr_html_(self) -> str:
        note = "The newest, with its steps: .latest" if self else ""
        return table(*self._table(), title=f"Entries: {len(self)}", note=note, empty=_NONE)


_NONE = "No event has started this automation yet."


def listed(connection: Connection, automation_id: str, limit: int, state: str | None = None) -> Entries:
    """Return the newest entries of an automation, of those in a state when it is given."""
    return _entries(connection, connection.get(f"/automations/{automation_id}/entries", limit=limit, state=state))


def started_by(connection: Connection, automation_id: str, sent: str) -> Entry | None:
    """Return the automation's entry for an event, found by idempotency key or event id; None when there is none."""
    found = _entries(connection, connection.get("/entries", idempotencyKey=sent))
    if not found and _UUID.fullmatch(sent):
        found = _entries(connection, connection.get("/entries", eventId=sent))
    return next((each for each in found if each.automation_id == automation_id), None)


def one(connection: Connection, entry_id: str) -> Entry:
    """Return one entry with its steps and messages."""
    return Entry(connection, msgspec.convert(connection.get(f"/entries/{entry_id}"), _Stored))


def _entries(connection: Connection, answer: dict[str, Any]) -> Entries:
    return Entries([Entry(connection, each) for each in msgspec.convert(answer["entries"], list[_Stored])])


def _ran(connection: Connection, automation_id: str, number: int) -> _Ran | None:
    versions = connection.get(f"/automations/{automation_id}/versions")["versions"]
    version = next((each for each in versions if each["version"] == number), None)
    if version is None:
        return None
    trigger, graph = read_trigger(version["triggerSpec"]), read_graph(version["graph"])
    if isinstance(trigger, tuple) or isinstance(graph, tuple):
        return None
    return _Ran(str(connection.get(f"/automations/{automation_id}")["name"]), trigger, graph)
