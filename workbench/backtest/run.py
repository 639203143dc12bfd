"""A backtest from the question to the result: count, read, live through, with a line that says how far it is."""

import math
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Self

import msgspec

from api.language.effect import Message
from api.language.simulate import Automation
from workbench import surroundings
from workbench.backtest.crew import Crew
from workbench.backtest.folder import Folder
from workbench.backtest.lives import CONTACTS, EVENTS, MESSAGES
from workbench.backtest.order import Lived, Order, Subject
from workbench.backtest.result import Happened
from workbench.backtest.selection import select
from workbench.backtest.source import Source, Whom, Window
from workbench.backtest.spool import Spool
from workbench.connection import Connection
from workbench.display.progress import Progress
from workbench.display.words import counted
from workbench.errors import DraftError, RefusedError
from workbench.known_segments import require
from workbench.periods import During, read_period

BUCKET = 10_000  # events that are lived through at a time
_ALONE = 20_000  # fewer events than this are lived through here: starting processes would take longer
_MOST_PROCESSES = 8
_READING = 0.35  # of the time that all takes, roughly


class Asked(msgspec.Struct, frozen=True):
    """What is asked for: a period, whose events, and how many processes may help (None: as many as there are cores)."""

    during: During
    whom: Whom = Whom()
    processes: int | None = None


class Subjects(msgspec.Struct, frozen=True):
    """What is tried, and what it is compared with. `own`: the id under which its real messages are stored."""

    draft: Subject
    rival: Subject | None = None
    own: str | None = None

    def all(self) -> tuple[Subject, ...]:
        """Return those that are lived through."""
        return (self.draft,) if self.rival is None else (self.draft, self.rival)


def run(connection: Connection, subjects: Subjects, asked: Asked) -> Happened:
    """Return what would have happened. Nothing is kept when it is interrupted."""
    _check(connection, asked)
    folder = Folder()
    try:
        return _happened(connection, subjects, asked, folder)
    except BaseException as error:
        folder.remove()
        if isinstance(error, RefusedError):
            raise RefusedError(f"{_UNREAD}: {error}", error.problems, error.request_id) from None
        raise


_UNREAD = "the events could not be read; fewer days, or sample=0.1 for a tenth of the contacts, are less to read"


def _check(connection: Connection, asked: Asked) -> None:
    """Raise DraftError for what cannot be asked for, NotThereError for a segment that nobody has defined."""
    sample, processes = asked.whom.sample, asked.processes
    if not sample or not _is_between(sample, 0, 1, (int, float)):
        raise DraftError(
            f"sample={sample!r} must be more than 0 and at most 1; sample=0.1 takes a tenth of the contacts"
        )
    if processes is not None and not _is_between(processes, 0, _MOST_PROCESSES, (int,)):
        raise DraftError(f"processes={processes!r} must be a whole number from 0 to {_MOST_PROCESSES}")
    read_period(asked.during)
    if asked.whom.segment is not None:
        require(connection, asked.whom.segment)


def _is_between(number: float, least: float, most: float, kinds: tuple[type, ...]) -> bool:
    return isinstance(number, kinds) and least <= number <= most


def _happened(connection: Connection, subjects: Subjects, asked: Asked, folder: Folder) -> Happened:
    automations = tuple(each.automation() for each in subjects.all())
    source = Source(connection, select(automations), asked.whom)
    ground = source.ground(read_period(asked.during))
    slices = source.slices(ground.window)
    order = Order(str(folder.path), ground.window.until, subjects.all())
    lived = Lived()
    with _Line(sum(events for _, events in slices)) as line, _crew(order, asked.processes, line.events) as crew:
        reading = _Reading(source, folder.path, max(1, math.ceil(line.events / BUCKET)), line)
        reading.take([window for window, _ in slices])
        if period := _capped(automations):
            window = ground.window
            reading.take_messages(Window(window.since - period, window.until), subjects.own)
        for each in crew.live(range(reading.buckets)):
            lived = _with(lived, each)
            line.lived(lived.events)
    return Happened(folder, ground, automations, lived)


def _crew(order: Order, processes: int | None, events: int) -> "closing[Crew]":
    """Return who lives through the buckets: this process alone, where starting others would take longer."""
    if processes is None:
        processes = min(surroundings.cores(), _MOST_PROCESSES) if events > _ALONE else 0
    return closing(Crew(order, processes))


def _capped(automations: tuple[Automation, ...]) -> timedelta | None:
    """Return the longest period of a frequency cap, None when there is none."""
    caps = [each.graph.settings.frequency_cap for each in automations if each.graph is not None]
    return max((cap.period for cap in caps if cap is not None), default=None)


def _with(lived: Lived, each: Lived) -> Lived:
    """Return what is said of some buckets with what is said of one more; the first message of a node stays the first."""
    if not each.messages:
        return lived
    before = lived.messages or tuple(() for _ in each.messages)
    messages = tuple(_first(one, other) for one, other in zip(before, each.messages, strict=True))
    return Lived(lived.events + each.events, lived.erased + each.erased, lived.masked or each.masked, messages)


def _first(known: tuple[Message, ...], new: tuple[Message, ...]) -> tuple[Message, ...]:
    nodes = {message.node_id for message in known}
    return (*known, *(message for message in new if message.node_id not in nodes))


class _Reading:
    """Puts what is read into buckets."""

    def __init__(self, source: Source, folder: Path, buckets: int, line: "_Line") -> None:
        self.buckets = buckets
        self._source = source
        self._folder = folder
        self._line = line

    def take(self, slices: list[Window]) -> None:
        """Read the events and their contacts."""
        events, contacts = self._spool(EVENTS), self._spool(CONTACTS)
        read = 0
        for window in slices:
            with closing(self._source.events(window)) as frames:
                for frame in frames:
                    events.take(frame)
                    read += frame.height
                    self._line.read(read)
            with closing(self._source.contacts(window)) as frames:
                for frame in frames:
                    contacts.take(frame)
        events.flush()
        contacts.flush()

    def take_messages(self, window: Window, own: str | None) -> None:
        """Read when contacts got messages of other automations."""
        spool = self._spool(MESSAGES)
        with closing(self._source.messages(window, own)) as frames:
            for frame in frames:
                spool.take(frame)
        spool.flush()

    def _spool(self, name: str) -> Spool:
        return Spool(self._folder / name, self.buckets)


class _Line:
    """The line that says how far it is, and at last whether it came to the end."""

    def __init__(self, events: int) -> None:
        self.events = events
        self._progress = Progress()
        self._shown_at = 0.0

    def read(self, events: int) -> None:
        """So many events are read."""
        self._show(f"Backtest: reading {self._of(events)}", _READING * self._share(events))

    def lived(self, events: int) -> None:
        """So many events are lived through, of those that are read."""
        self._show(f"Backtest: {self._of(events)}", _READING + (1 - _READING) * self._share(events))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, stopped: type[BaseException] | None, *_: object) -> None:
        state, look = ("done", "good") if stopped is None else ("stopped", "warn")
        self._progress.show(f"Backtest: {counted(self.events, 'event')}", state, look)

    def _of(self, events: int) -> str:
        return f"{events:,} of {self.events:,} events"

    def _share(self, events: int) -> float:
        return min(events / self.events, 1.0) if self.events else 1.0

    def _show(self, text: str, share: float) -> None:
        now = surroundings.seconds()
        if now - self._shown_at >= _BETWEEN:
            self._shown_at = now
            self._progress.show(text, f"{share:.0%}", "busy", share)


_BETWEEN = 0.2  # seconds between two changes of the line
