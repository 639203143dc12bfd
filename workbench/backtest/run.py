"""A backtest from the question to the result: count, read, live through, with a line that says how far it is.

What `automation.backtest(…)` does: say what is tried and what it is compared with, and run it.
"""

import math
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import msgspec

from workbench import environment
from workbench.backtest.buckets import Folder, Spool
from workbench.backtest.result import Backtest, BacktestLabel, BacktestRun
from workbench.backtest.simulate_bucket import CONTACTS, EVENTS, MESSAGES, AutomationPayload, BucketSummary, BucketTask
from workbench.backtest.source import BacktestSource, ContactSample, Window, select
from workbench.backtest.worker import WorkerPool
from workbench.connection import Connection
from workbench.display.html import ProgressLine
from workbench.display.words import quantity
from workbench.draft import Draft
from workbench.duration import PeriodArguments, read_period
from workbench.errors import InvalidArgumentError, InvalidRequestError, NotFoundError, StoppedError
from workbench.language.check import errors
from workbench.language.run import Message
from workbench.language.simulate import SIMULATED_ID, SimulatedAutomation
from workbench.publish import AutomationRecord, find
from workbench.segments import require_segment

BUCKET = 10_000  # events that are lived through at a time
_ALONE = 20_000  # fewer events than this are lived through here: starting processes would take longer
_MOST_PROCESSES = 8
_READING = 0.35  # of the time that all takes, roughly


class BacktestRequest(msgspec.Struct, frozen=True):
    """What is asked for: a period, whose events, and how many processes may help (None: as many as there are cores)."""

    during: PeriodArguments
    whom: ContactSample = ContactSample()
    processes: int | None = None


class Subjects(msgspec.Struct, frozen=True):
    """What is tried, and what it is compared with. `own`: the id under which its real messages are stored."""

    draft: AutomationPayload
    rival: AutomationPayload | None = None
    own: str | None = None

    def all(self) -> tuple[AutomationPayload, ...]:
        """Return those that are lived through."""
        return (self.draft,) if self.rival is None else (self.draft, self.rival)


def run(connection: Connection, subjects: Subjects, asked: BacktestRequest) -> BacktestRun:
    """Return what would have happened. Nothing is kept when it is interrupted."""
    _check(connection, asked)
    folder = Folder()
    try:
        return _happened(connection, subjects, asked, folder)
    except BaseException as error:
        folder.remove()
        if isinstance(error, InvalidRequestError):
            raise InvalidRequestError(f"{_UNREAD}: {error}", error.problems, request_id=error.request_id) from None
        raise


_UNREAD = "the events could not be read; fewer days, or sample=0.1 for a tenth of the contacts, are less to read"


def _check(connection: Connection, asked: BacktestRequest) -> None:
    """Raise InvalidArgumentError for what cannot be asked for, NotFoundError for a segment that nobody has defined."""
    sample, processes = asked.whom.sample, asked.processes
    if not sample or not _is_between(sample, 0, 1, (int, float)):
        raise InvalidArgumentError(
            f"sample={sample!r} must be more than 0 and at most 1; sample=0.1 takes a tenth of the contacts"
        )
    if processes is not None and not _is_between(processes, 0, _MOST_PROCESSES, (int,)):
        raise InvalidArgumentError(f"processes={processes!r} must be a whole number from 0 to {_MOST_PROCESSES}")
    read_period(asked.during)
    if asked.whom.segment is not None:
        require_segment(connection, asked.whom.segment)


def _is_between(number: float, least: float, most: float, kinds: tuple[type, ...]) -> bool:
    return isinstance(number, kinds) and least <= number <= most


def _happened(connection: Connection, subjects: Subjects, asked: BacktestRequest, folder: Folder) -> BacktestRun:
    automations = tuple(each.automation() for each in subjects.all())
    source = BacktestSource(connection, select(automations), asked.whom)
    ground = source.ground(read_period(asked.during))
    slices = source.slices(ground.window)
    order = BucketTask(str(folder.path), ground.window.until, subjects.all())
    lived = BucketSummary()
    with _Line(sum(events for _, events in slices)) as line, _crew(order, asked.processes, line.events) as crew:
        reading = _Reading(source, folder.path, max(1, math.ceil(line.events / BUCKET)), line)
        reading.take([window for window, _ in slices])
        if period := _capped(automations):
            window = ground.window
            reading.take_messages(Window(window.since - period, window.until), subjects.own)
        for each in crew.live(range(reading.buckets)):
            lived = _with(lived, each)
            line.lived(lived.events)
    return BacktestRun(folder, ground, automations, lived)


def _crew(order: BucketTask, processes: int | None, events: int) -> "closing[WorkerPool]":
    """Return who lives through the buckets: this process alone, where starting others would take longer."""
    if processes is None:
        processes = min(environment.cores(), _MOST_PROCESSES) if events > _ALONE else 0
    return closing(WorkerPool(order, processes))


def _capped(automations: tuple[SimulatedAutomation, ...]) -> timedelta | None:
    """Return the longest period of a frequency cap, None when there is none."""
    caps = [each.graph.settings.frequency_cap for each in automations if each.graph is not None]
    return max((cap.period for cap in caps if cap is not None), default=None)


def _with(lived: BucketSummary, each: BucketSummary) -> BucketSummary:
    """Return what is said of some buckets with what is said of one more; the first message of a node stays the first."""
    if not each.messages:
        return lived
    before = lived.messages or tuple(() for _ in each.messages)
    messages = tuple(_first(one, other) for one, other in zip(before, each.messages, strict=True))
    return BucketSummary(lived.events + each.events, lived.erased + each.erased, lived.masked or each.masked, messages)


def _first(known: tuple[Message, ...], new: tuple[Message, ...]) -> tuple[Message, ...]:
    nodes = {message.node_id for message in known}
    return (*known, *(message for message in new if message.node_id not in nodes))


class _Reading:
    """Puts what is read into buckets."""

    def __init__(self, source: BacktestSource, folder: Path, buckets: int, line: "_Line") -> None:
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
        self._progress = ProgressLine()
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
        self._progress.show(f"Backtest: {quantity(self.events, 'event')}", state, look)

    def _of(self, events: int) -> str:
        return f"{events:,} of {self.events:,} events"

    def _share(self, events: int) -> float:
        return min(events / self.events, 1.0) if self.events else 1.0

    def _show(self, text: str, share: float) -> None:
        now = environment.monotonic_s()
        if now - self._shown_at >= _BETWEEN:
            self._shown_at = now
            self._progress.show(text, f"{share:.0%}", "busy", share)


_BETWEEN = 0.2  # seconds between two changes of the line


Against: TypeAlias = Literal["published"] | int


def backtested(
    connection: Connection,
    draft: Draft,
    record: AutomationRecord | None,
    against: Against | None,
    asked: BacktestRequest,
) -> Backtest:
    """Return what the draft would have done, compared with a version of its record; raise StoppedError when it is interrupted."""
    try:
        return _backtested(connection, draft, record, against, asked)
    except KeyboardInterrupt:
        raise StoppedError(_STOPPED) from None


_STOPPED = (
    "the backtest was stopped, and nothing is kept of it; sample=0.1 takes a tenth of the contacts and is done sooner"
)


def _backtested(
    connection: Connection,
    draft: Draft,
    record: AutomationRecord | None,
    against: Against | None,
    asked: BacktestRequest,
) -> Backtest:
    if not draft.nodes:
        raise InvalidArgumentError('say first which event: .on("deposit")')
    payload = draft.payload()
    if against is not None:
        record = find(connection, draft.name) or record  # it may have been published since the draft was begun
    own = record.id if record is not None else None
    trigger, graph = payload["triggerSpec"], payload["graph"]
    version = None if against is None else _version(connection, draft.name, record, against)
    rival = (
        None if version is None else AutomationPayload(own or SIMULATED_ID, version["triggerSpec"], version["graph"])
    )
    called = BacktestLabel(
        draft.name,
        "" if version is None else f"version {version['version']}",
        saved=record is not None,
        problems=len(errors(draft.remarks())),
    )
    return Backtest(
        called, run(connection, Subjects(AutomationPayload(own or SIMULATED_ID, trigger, graph), rival, own), asked)
    )


def _version(connection: Connection, name: str, record: AutomationRecord | None, against: Against) -> dict[str, Any]:
    """Return a published version as the server has it; raise NotFoundError when there is none such."""
    if record is None or record.published_version is None:
        raise NotFoundError(f"{name!r} was never published, so there is nothing to compare it with")
    number = record.published_version if against == "published" else against
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgumentError(f'against={against!r}: write against="published", or the number of a version')
    versions: list[dict[str, Any]] = connection.get(f"/automations/{record.id}/versions", limit=_MOST)["versions"]
    found = next((each for each in versions if each["version"] == number), None)
    if found is None:
        raise NotFoundError(f"there is no version {number} of {name!r}; .versions() shows which there are")
    return found


_MOST = 100
