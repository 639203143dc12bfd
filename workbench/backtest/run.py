"""Runs a backtest: count the events, read them, simulate them, with a progress line."""

import math
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import msgspec
import polars as pl

from workbench import environment
from workbench.backtest.buckets import BucketWriter, Folder
from workbench.backtest.merged import PastMerge, contact_groups
from workbench.backtest.result import Backtest, BacktestLabel
from workbench.backtest.simulate_bucket import (
    CHANGES,
    CONTACTS,
    EVENTS,
    MERGES,
    MESSAGES,
    PAST_ENTRIES,
    REAL_ENTRIES,
    REAL_MOVES,
    AutomationPayload,
    BucketSummary,
    BucketTask,
    LivePayload,
    VersionPayload,
)
from workbench.backtest.source import BacktestScope, BacktestSource, ContactSample, EventSelection, Window, select
from workbench.backtest.starts import UnsentBroadcast, select_starts
from workbench.backtest.worker import WorkerPool
from workbench.connection import Connection
from workbench.display.html import ProgressLine, moment
from workbench.display.words import quantity
from workbench.draft import Draft
from workbench.duration import Moment, PeriodArguments, moment_of, read_period
from workbench.errors import InvalidArgumentError, InvalidRequestError, NotFoundError, StoppedError
from workbench.language.channel import RetryPolicy
from workbench.language.check import errors
from workbench.language.live import ActivationChange, ActivationState
from workbench.language.simulate import SIMULATED_ID, SimulatedAutomation
from workbench.language.starts import StartSource
from workbench.publish import AutomationRecord, Version, find, versions
from workbench.segments import require_segment
from workbench.snippets import with_pins

BUCKET_EVENTS = 10_000
_MIN_EVENTS_FOR_WORKERS = 20_000  # below this, starting processes takes longer than simulating here
_MAX_PROCESSES = 8
_READING_SHARE = 0.35  # of the total time, roughly
_PROGRESS_INTERVAL_S = 0.2
_MAX_READINGS = 3
_CHANGED_MEANWHILE = (
    "Events, merges or erasures were stored while the period was read, so some differences may come from that."
)

Against: TypeAlias = Literal["published"] | int
BacktestVersion: TypeAlias = Literal["draft", "live"]

_ACTIVATION_STATES: dict[str, ActivationState] = {"live": "live", "paused": "paused"}  # of other states: off


class BacktestRequest(msgspec.Struct, frozen=True):
    """The arguments of a backtest. `at`: the time of a broadcast. `processes` None: one worker per core."""

    period: PeriodArguments
    sample: ContactSample = ContactSample()
    processes: int | None = None
    at: Moment | None = None


def backtested(
    connection: Connection,
    draft: Draft,
    record: AutomationRecord | None,
    against: Against | None,
    request: BacktestRequest,
    version: BacktestVersion = "draft",
) -> Backtest:
    """Return the backtest of a draft, compared with a version of its record, or of what was live.

    Raises StoppedError on an interrupt.
    """
    if version == "live":
        if against is not None:
            raise InvalidArgumentError('version="live" is compared with the entries of the engine: leave out `against`')
        return _backtested_live(connection, draft.name, record, request)
    if version != "draft":
        raise InvalidArgumentError(f'version={version!r}: write version="live" for what was live, or "draft"')
    if not draft.nodes:
        raise InvalidArgumentError('The automation is empty. Begin with the event that starts it: .on("deposit").')
    draft = with_pins(draft, connection)
    payload = draft.payload()
    if against is not None:
        record = find(connection, draft.name) or record  # it may have been published since the draft was opened
    own_id = record.id if record is not None else None
    other = None if against is None else _find_version(connection, draft.name, record, against)
    bodies = [payload, *([] if other is None else [other.payload()])]
    payloads = tuple(AutomationPayload(own_id or SIMULATED_ID, body["triggerSpec"], body["graph"]) for body in bodies)
    label = BacktestLabel(
        draft.name,
        "" if other is None else f"version {other.version}",
        saved=record is not None,
        problems=len(errors(draft.remarks())),
    )
    return run(connection, label, payloads, own_id, request)


def _find_version(connection: Connection, name: str, record: AutomationRecord | None, against: Against) -> Version:
    if record is None or record.published_version is None:
        raise NotFoundError(f"{name!r} was never published: publish it first, or backtest it without `against`")
    number = record.published_version if against == "published" else against
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgumentError(f'against={against!r}: write against="published", or the number of a version')
    return versions(connection, record).numbered(number)


def _backtested_live(
    connection: Connection, name: str, record: AutomationRecord | None, request: BacktestRequest
) -> Backtest:
    record = find(connection, name) or record
    if record is None or record.published_version is None:
        raise NotFoundError(f"{name!r} was never published, so nothing of it was live")
    label = BacktestLabel(name, saved=True)
    return run(connection, label, (), record.id, request, partial(_read_live, connection, record))


def _read_live(connection: Connection, record: AutomationRecord) -> LivePayload:
    published = [
        VersionPayload(
            datetime.fromisoformat(version.published_at),
            version.version,
            AutomationPayload(record.id, version.trigger_spec, version.graph),
        )
        for version in sorted(versions(connection, record), key=lambda version: version.version)
    ]
    activations = msgspec.convert(
        connection.get(f"/automations/{record.id}/activations")["activations"], tuple[ActivationChange, ...]
    )
    is_archived = record.archived_at is not None
    state: ActivationState = "archived" if is_archived else _ACTIVATION_STATES.get(record.state, "off")
    return LivePayload(tuple(published), activations, state)


def run(
    connection: Connection,
    label: BacktestLabel,
    payloads: tuple[AutomationPayload, ...],
    own_id: str | None,
    request: BacktestRequest,
    read_live: Callable[[], LivePayload] | None = None,
) -> Backtest:
    """Read and simulate the events. If it is interrupted or fails, its files are deleted.

    `own_id`: the id under which the real messages of the automation are stored. `read_live`: returns what was live, to
    play that instead of `payloads`. Raises InvalidArgumentError for invalid arguments, NotFoundError for an unknown
    segment, StoppedError on an interrupt.
    """
    # The arguments are checked before anything is read: reading may take minutes.
    # Any: a notebook does not enforce the annotations.
    share: Any = request.sample.share
    processes: Any = request.processes
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise InvalidArgumentError(
            f"sample={share!r} must be more than 0 and at most 1; sample=0.1 takes a tenth of the contacts"
        )
    if processes is not None and not (isinstance(processes, int) and 0 <= processes <= _MAX_PROCESSES):
        raise InvalidArgumentError(f"processes={processes!r} must be a whole number from 0 to {_MAX_PROCESSES}")
    read_period(request.period)
    if request.sample.segment is not None:
        require_segment(connection, request.sample.segment)
    folder = Folder()
    try:
        folder.create()
        scope = BacktestSource(connection, EventSelection(), request.sample).scope(read_period(request.period))
        live = None
        if read_live is not None:  # after the end of the period is known: what is published from now on is after it
            live = read_live()
            payloads = (live.versions[-1].automation,)
            live = _live_within(live, scope.window)
        simulated = automations = tuple(payload.automation() for payload in payloads)
        if live is not None:
            automations = tuple(version.automation.automation() for version in live.versions)
        source, scope = _open_source(connection, automations, own_id, request, scope, live=live is not None)
        slices = source.slices(scope.window)
        total = sum(events for _, events in slices)
        buckets = max(1, math.ceil(total / BUCKET_EVENTS))
        processes = request.processes
        if processes is None:
            processes = min(environment.cores(), _MAX_PROCESSES) if total > _MIN_EVENTS_FOR_WORKERS else 0
        summary = BucketSummary()
        delays = msgspec.convert(connection.get("/retries")["delays"], tuple[float, ...] | None)
        task = BucketTask(str(folder.path), scope.window.until, payloads, RetryPolicy(delays), live)
        with _Progress(total) as progress, closing(WorkerPool(task, processes)) as workers:
            graphs = [automation.graph for automation in automations if automation.graph is not None]
            caps = [graph.settings.frequency_cap for graph in graphs if graph.settings.frequency_cap is not None]
            cap_period = max((cap.period for cap in caps), default=None)
            files = _BucketFiles(
                source, scope.window, own_id, live is not None, cap_period, folder.path, buckets, progress
            )
            if not files.write_all(slices):
                scope = msgspec.structs.replace(scope, remarks=(*scope.remarks, _CHANGED_MEANWHILE))
            for bucket_summary in workers.simulate(range(buckets)):
                summary = summary.plus(bucket_summary)
                progress.show("", summary.events, _READING_SHARE, 1.0)
        return Backtest(label, scope, folder, simulated, summary, is_live=live is not None)
    except BaseException as error:  # also KeyboardInterrupt, which is not an Exception
        folder.remove()
        if isinstance(error, KeyboardInterrupt):
            raise StoppedError(
                "The backtest was stopped and has no result. sample=0.1 takes a tenth of the contacts."
            ) from None
        if isinstance(error, InvalidRequestError):  # a limit of the key: too many rows, or too slow
            hint = "use fewer days, or sample=0.1 for a tenth of the contacts"
            message = f"The events could not be read; {hint}: {error}"
            raise InvalidRequestError(message, error.problems, request_id=error.request_id) from None
        raise


class _BucketFiles(msgspec.Struct, frozen=True):
    """The files in a folder with the rows of a window. `cap_period`: the longest of a frequency cap."""

    source: BacktestSource
    window: Window
    own_id: str | None
    is_live: bool
    cap_period: timedelta | None
    path: Path
    buckets: int
    progress: "_Progress"

    def write_all(self, slices: Sequence[tuple[Window, int]]) -> bool:
        """Write all rows; return False if contacts or late events changed during each of three attempts.

        Each statement sees what was committed before it. They have seen the same if since before the first one no event
        of the window came late, none of these contacts was merged or separated, and no contact was erased; otherwise,
        everything is read again.
        Entries and their steps are of one statement. A step that an engine takes after it counts as not taken yet.
        """
        source, window = self.source, self.window
        if not self.is_live:
            self._write(slices, source.merges(window))
            return True
        merges, erasures = source.merges(window), source.count_erased()
        for _ in range(_MAX_READINGS):
            for written in filter(Path.is_dir, self.path.iterdir()):
                shutil.rmtree(written)
            contact_ids = self._write(slices, merges)
            state, merged = (slices, erasures), {*merges.rows()}
            slices, merges, erasures = source.slices(window), source.merges(window), source.count_erased()
            changed = map(PastMerge._make, merged ^ {*merges.rows()})
            is_touched = any(not contact_ids.isdisjoint((*merge.contact_ids, merge.contact_id)) for merge in changed)
            if (slices, erasures) == state and not is_touched:
                return True
        return False

    def _write(self, slices: Sequence[tuple[Window, int]], merges: pl.DataFrame) -> set[str]:
        """Write all rows; return the contacts if it is of what was live."""
        source, window, own_id = self.source, self.window, self.own_id
        groups = contact_groups(map(PastMerge._make, merges.iter_rows()))

        def write_bucketed(name: str, frames: Generator[pl.DataFrame]) -> None:
            writer = BucketWriter(self.path / name, self.buckets, groups)
            with closing(frames):
                for frame in frames:
                    writer.write(frame)
            writer.flush()

        merge_writer, events, contacts = (
            BucketWriter(self.path / name, self.buckets, groups) for name in (MERGES, EVENTS, CONTACTS)
        )
        merge_writer.write(merges)
        merge_writer.flush()
        read, contact_ids = 0, set[str]()
        for part, _ in slices:
            with closing(source.events(part, live=self.is_live)) as frames:
                for frame in frames:
                    events.write(frame)
                    read += frame.height
                    if self.is_live:
                        contact_ids.update(frame["contact_id"].unique())
                    self.progress.show("reading ", read, 0.0, _READING_SHARE)
            with closing(source.contacts(part)) as frames:
                for frame in frames:
                    contacts.write(frame)
                    if self.is_live:
                        contact_ids.update(frame["contact_id"])
        events.flush()
        contacts.flush()

        if self.is_live:
            # Before the changes and messages: they then have all that a step has seen.
            assert own_id is not None
            write_bucketed(REAL_ENTRIES, source.entries(window, own_id))
            write_bucketed(REAL_MOVES, source.moves(window, own_id))
            write_bucketed(PAST_ENTRIES, source.past_entries(window, own_id))
        write_bucketed(CHANGES, source.changes(window, own_id, live=self.is_live))
        if self.cap_period is not None:
            # A cap counts messages of all automations, including those within its period before the backtest begins.
            earlier = Window(window.since - self.cap_period, window.until)
            write_bucketed(MESSAGES, source.messages(earlier, own_id, window.since if self.is_live else None))
        return contact_ids


def _live_within(live: LivePayload, window: Window) -> LivePayload:
    """Return what was live in a window: the versions that were published in it, and the last before it."""
    versions = [version for version in live.versions if version.at < window.until]
    earlier = sum(version.at <= window.since for version in versions)
    if not versions:
        raise InvalidArgumentError(
            f"no version was published before the end of the period, {moment(window.until)} (UTC)"
        )
    if not earlier and versions[0].number > 1:
        raise InvalidArgumentError(
            f"the period begins before version {versions[0].number} was published on {moment(versions[0].at)} (UTC), "
            "and only the newest hundred versions can be read: begin later"
        )
    return msgspec.structs.replace(live, versions=tuple(versions[max(earlier - 1, 0) :]))


def _open_source(
    connection: Connection,
    automations: Sequence[SimulatedAutomation],
    own_id: str | None,
    request: BacktestRequest,
    scope: BacktestScope,
    *,
    live: bool,
) -> tuple[BacktestSource, BacktestScope]:
    """Return what reads the events and starts, and the scope with remarks on the starts."""
    selection, sample = select(automations), request.sample
    source = BacktestSource(connection, selection, sample)
    window, triggers = scope.window, [automation.trigger.source for automation in automations]
    sources = [trigger for trigger in triggers if isinstance(trigger, StartSource)]
    broadcast, remarks = None, []
    if any(item.type == "broadcast" for item in sources):
        if request.at is not None:
            broadcast = UnsentBroadcast(moment_of(request.at, "at"), sample.segment)
            if not window.since <= broadcast.at < window.until:
                bounds = f"from {moment(window.since)} to {moment(window.until)} (UTC)"
                raise InvalidArgumentError(f"at={request.at!r} is not in the period, which is {bounds}")
            remarks.append(f"It is broadcast on {moment(broadcast.at)} UTC to {broadcast.recipients()}.")
        elif not live and (own_id is None or not source.sent_broadcasts(window, own_id)):
            broadcast = UnsentBroadcast(window.since, sample.segment)
            remarks.append(
                "It was not broadcast in this period, so this is a broadcast at its beginning to "
                f"{broadcast.recipients()}. at= and segment= choose another one."
            )
    elif request.at is not None:
        raise InvalidArgumentError(f"at={request.at!r} is the time of a broadcast: the trigger must be .on_broadcast()")
    starts = select_starts(sources, window.since, window.until, broadcast, own=own_id is not None)
    if broadcast is not None:  # the segment has its recipients, not contacts that are in it now
        sample = msgspec.structs.replace(sample, segment=None)
        counted = BacktestSource(connection, selection, sample).scope(read_period(request.period)).contacts
        scope = msgspec.structs.replace(scope, sample=sample, contacts=counted)
    source = BacktestSource(connection, selection.with_starts(starts, own_id), sample)
    source.check_starts(scope)
    return source, msgspec.structs.replace(scope, remarks=(*remarks, *source.start_remarks(window)))


class _Progress:
    """The progress line: reading, then simulating, at last done or stopped."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = ProgressLine()
        self._shown_at_s = 0.0

    def show(self, action: str, events: int, begin: float, end: float) -> None:
        """Show how many events are done; they move the progress from the share `begin` to the share `end`."""
        now_s = environment.monotonic_s()
        if now_s - self._shown_at_s >= _PROGRESS_INTERVAL_S:
            self._shown_at_s = now_s
            share = begin + (end - begin) * (min(events / self._total, 1.0) if self._total else 1.0)
            text = f"Backtest: {action}{events:,} of {self._total:,} events"
            self._line.show(text, f"{share:.0%}", "busy", share)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        state, look = ("done", "good") if error is None else ("stopped", "warn")
        self._line.show(f"Backtest: {quantity(self._total, 'event')}", state, look)
