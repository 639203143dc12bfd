"""Built-in reports: funnels, retention, cohorts, active users, paths, revenue, conversion times, message performance.

The service answers a report from its arguments (`workbench.language.reports`). The SQL that gives the same rows is in
`sql/reports`, and every report displays it. A report without data may be due to a misspelled event or property;
`name_warnings` compares the names with the catalog.
"""

from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, get_args

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.html import ProgressLine
from workbench.duration import PeriodArguments, read_period, seconds_of
from workbench.duration import whole_number as _count
from workbench.errors import InvalidArgumentError, NotFoundError, WorkbenchError, usage_example
from workbench.language.check import TYPE_WORDS, unknown_event_message, unknown_property_message
from workbench.language.event import LOG_NAME
from workbench.language.page import RelativeTime
from workbench.language.problem import suggestion
from workbench.language.reports import (
    MAX_PATHS,
    MAX_PERIODS,
    MAX_STEPS,
    ActiveUsers,
    Cohorts,
    Every,
    Funnel,
    MessagePerformance,
    Paths,
    ReportBody,
    ReportProgress,
    Retention,
    Revenue,
    TimeToConvert,
    report_query,
    start_of_period,
)
from workbench.segments import require_segment
from workbench.sql import AsOf, SqlQuery, report_rows, sql, statement, watermark

if TYPE_CHECKING:
    from workbench.display.charts import Report
    from workbench.frames import Result

Span: TypeAlias = str | timedelta

_MAX_CONTACTS = 10_000  # whose attributes are listed to suggest a name for a misspelt one
_MAX_NAMES = 10  # of attributes that an error lists
PROGRESS_INTERVAL_S = 1.0


class ReportArguments(PeriodArguments, total=False):
    """The period of the report, by the time at which events occurred, and its other limits.

    The last `days` (default 30, except for retention and cohorts) before `until` (default now), or `since` to `until`.
    `segment`: only events of contacts that are in this segment now, whenever they entered it. `segments`: the same for
    each of several segments, named in the column `segment`. `as_of`: an earlier result or its `watermark`; the report
    reads the events as they were then, and `days` counts back from that time.
    """

    segment: str
    segments: Sequence[str]
    as_of: AsOf


class Reports(ABC):
    """The built-in reports. Each returns a polars frame that displays a chart.

    Like a result of `wb.sql`, the frame has the `statement` and `params` of its query. All reports raise
    InvalidArgumentError for arguments that cannot be used, NotFoundError for an unknown segment, and SqlError if the
    query fails or takes too long.
    """

    _connection: Connection

    @usage_example('wb.funnel(["signup", "deposit"], within="7d")')
    def funnel(
        self, steps: Sequence[str], *, within: Span = "7d", by: str | None = None, **arguments: Unpack[ReportArguments]
    ) -> "Report":
        """Return how many contacts completed each of 2 to 12 steps, in order and within a span from the first step.

        Columns: step, event, contacts, of_first, of_previous (0 to 1), median_seconds (since the first step). `by`
        splits the contacts by a property of the first step's payload (`"method"`) or of the contact
        (`"contact.plan"`): column part.
        """
        if isinstance(steps, str):
            raise InvalidArgumentError('steps must be a list of event names: ["signup", "deposit"]')
        names = [_event(name) for name in steps]
        if not 2 <= len(names) <= MAX_STEPS:
            raise InvalidArgumentError(f"a funnel has 2 to {MAX_STEPS} steps, not {len(names)}")
        title = f"Funnel within {within}{f' by {by}' if by else ''}"
        return self._report(Funnel, title, arguments, steps=names, within_seconds=_span(within), by=_group(by))

    @usage_example('wb.retention("signup", every="week")')
    def retention(
        self,
        start: str,
        back: str | None = None,
        *,
        every: Every = "week",
        periods: int = 8,
        **arguments: Unpack[ReportArguments],
    ) -> "Report":
        """Return the share of contacts that came back, by the period of their first `start` ever.

        With `back`, only that event counts as coming back, otherwise any event.

        Columns: cohort (start of the period, UTC), size, number (periods since then, from 0), contacts, share (0 to
        1), complete (false if the report does not cover the cohort's period, or this one, entirely). The default period
        is the last `periods` days, weeks or months, and the current one.
        """
        values = {
            "start": _event(start),
            "back": _optional_event(back),
            "every": _every(every),
            "periods": _count(periods, "periods", MAX_PERIODS),
        }
        title = f"Back with {back or 'any event'} after {start}, by {every}"
        return self._report(Retention, title, arguments, **values)

    @usage_example('wb.cohorts("signup", "deposit", value="amountUsd", every="month")')
    def cohorts(
        self,
        start: str,
        event: str,
        *,
        value: str | None = None,
        every: Every = "month",
        periods: int = 6,
        **arguments: Unpack[ReportArguments],
    ) -> "Report":
        """Return the number of `event`, or the total of its `value`, by the period of contacts' first `start` ever.

        Columns: cohort (start of the period, UTC), size, number (periods since then, from 0), events, total,
        per_contact, so_far (per contact, cumulative), complete (false if the report does not cover the cohort's
        period, or this one, entirely). The default period is the last `periods` days, weeks or months, and the current
        one.
        """
        values = {
            "start": _event(start),
            "event": _event(event),
            "every": _every(every),
            "periods": _count(periods, "periods", MAX_PERIODS),
            "value": None if value is None else _path(value),
        }
        title = f"{value or 'Events'} of {event} per contact after {start}, by {every}"
        return self._report(Cohorts, title, arguments, **values)

    @usage_example('wb.active_users(every="day")')
    def active_users(
        self, event: str | None = None, *, every: Every = "day", **arguments: Unpack[ReportArguments]
    ) -> "Report":
        """Return how many contacts had any event, or `event`, in each day, week or month.

        Columns: at (start, UTC), contacts, new (never active before), stayed (active in the previous day, week or month
        as well), events, complete (false for a day, week or month that the report does not cover entirely).
        """
        title = f"Active contacts{f' with {event}' if event else ''} by {every}"
        return self._report(ActiveUsers, title, arguments, event=_optional_event(event), every=_every(every))

    @usage_example('wb.paths("signup", steps=4, within="1d")')
    def paths(
        self,
        start: str | None = None,
        *,
        steps: int = 4,
        within: Span = "7d",
        limit: int = 20,
        **arguments: Unpack[ReportArguments],
    ) -> "Report":
        """Return the most frequent sequences of up to `steps` events from a contact's first `start`, or first event.

        Columns: path (list of event names), contacts, share (0 to 1, of all contacts that started).
        """
        values = {
            "start": _optional_event(start),
            "steps": _count(steps, "steps", MAX_STEPS),
            "within_seconds": _span(within),
            "limit": _count(limit, "limit", MAX_PATHS),
        }
        title = f"Paths after {start or 'the first event'}, within {within}"
        return self._report(Paths, title, arguments, **values)

    @usage_example('wb.revenue("deposit", "amountUsd", by="asset")')
    def revenue(
        self,
        event: str,
        value: str,
        *,
        by: str | None = None,
        every: Every | None = None,
        **arguments: Unpack[ReportArguments],
    ) -> "Report":
        """Return the total of a number in the payload of `event`; with `every`, one total per day, week or month.

        `by` groups by a property of the payload (`"asset"`) or of the contact (`"contact.plan"`).

        Columns: events, contacts, total, mean, median, largest; with `by` also part; with `every` also at (start, UTC)
        and complete (as in `active_users`). Events without the number count only in `events`. A period without events
        has no row.
        """
        values = {"event": _event(event), "value": _path(value), "by": _group(by)}
        values["every"] = None if every is None else _every(every)
        title = f"{value} of {event}{f' by {by}' if by else ''}{f' by {every}' if every else ''}"
        return self._report(Revenue, title, arguments, **values)

    @usage_example('wb.time_to_convert("signup", "deposit", within="30d")')
    def time_to_convert(
        self, start: str, goal: str, *, within: Span = "30d", **arguments: Unpack[ReportArguments]
    ) -> "Report":
        """Return how long contacts took from their first `start` to the next `goal`.

        Columns: after_seconds and within_seconds (the bounds of a range), contacts, share (0 to 1, of all contacts
        that started), share_so_far (cumulative).
        """
        values = {"start": _event(start), "goal": _event(goal), "within_seconds": _span(within)}
        return self._report(TimeToConvert, f"From {start} to {goal}", arguments, **values)

    @usage_example('wb.message_performance(goal="deposit", within="3d")')
    def message_performance(
        self, goal: str | None = None, *, within: Span = "7d", **arguments: Unpack[ReportArguments]
    ) -> "Report":
        """Return the outcomes of messages by automation, node and channel, and how many contacts then reached a goal.

        Columns: automation, node_id, channel, messages, sent, delivered, failed, skipped, unknown, contacts; with
        `goal` also converted (contacts) and rate (0 to 1), which include contacts that would have reached the goal
        without a message.
        """
        title = f"Messages{f' and {goal} within {within}' if goal else ''}"
        return self._report(
            MessagePerformance, title, arguments, goal=_optional_event(goal), within_seconds=_span(within)
        )

    def _report(self, kind: type[ReportBody], title: str, arguments: ReportArguments, **values: Any) -> "Report":
        from workbench.display.charts import report

        as_of = watermark(arguments.get("as_of", ""))
        since, until = _period(arguments, as_of, values)
        segments = _segments(arguments)
        for segment in segments:
            require_segment(self._connection, segment)
        title = f"{title}, of {', '.join(segments)}" if segments else title
        body = kind(since=since, until=until, segments=tuple(segments), as_of=as_of, **values)
        query = report_query(body, statement)
        with _progress_shown(self._connection):
            rows = report_rows(self._connection, body, SqlQuery(query.text, query.params, as_of))
        source, path = body.group or (None, "")
        if source == "contact" and rows.height and rows["part"].drop_nulls().is_empty():
            self._require_attribute(path)
        result = report(rows, kind.name, title, self._warnings(rows, body))
        result.relative = _relative(arguments, values, query.params)
        return result

    def _require_attribute(self, name: str) -> None:
        """Raise InvalidArgumentError if none of many contacts has the attribute."""
        rows = sql(self._connection, SqlQuery(statement("attributes"), {"contacts": _MAX_CONTACTS}))
        attributes = rows["name"].to_list()
        if name in attributes:
            return
        listed = ", ".join(attributes[:_MAX_NAMES]) + (", …" if len(attributes) > _MAX_NAMES else "")
        hint = suggestion(name, [*attributes, "segments"], f"; contacts have: {listed}" if attributes else "")
        raise InvalidArgumentError(
            f"by='contact.{name}': none of up to {_MAX_CONTACTS:,} contacts has this attribute{hint}"
        )

    def _warnings(self, rows: "Result", body: ReportBody) -> list[str]:
        """Return warnings about names, if the report has no data and a wrong name may be the reason."""
        events = [*body.events().values()]
        source, path = body.group or (None, "")
        if "step" in rows.columns:
            no_data = 0 in rows["contacts"]
        elif "share" in rows.columns and "number" in rows.columns:
            # Number 0 is the cohort itself, so its share is always 100 %.
            no_data = not rows.filter(rows["number"] > 0)["contacts"].sum()
        else:
            counts = next(name for name in ("converted", "events", "contacts") if name in rows.columns)
            no_data = not rows[counts].sum()
        if no_data or rows.is_empty():
            return name_warnings(self._connection, events)
        if isinstance(body, Revenue | Cohorts) and body.value and not rows["total"].drop_nulls().len():
            return name_warnings(self._connection, [body.event], body.value, number=True)
        if source == "event" and rows["part"].drop_nulls().is_empty():
            return name_warnings(self._connection, events[:1], path)
        return []


def name_warnings(
    connection: Connection, events: Iterable[str], path: str | None = None, *, number: bool = False
) -> list[str]:
    """Return a warning for each event that did not arrive lately, and for a path that the first event does not have.

    `number`: warn as well if the path never had a number. If the catalog cannot be read, there are no warnings: they
    are only hints.
    """
    names = [name for name in dict.fromkeys(events) if not LOG_NAME.fullmatch(name)]  # no catalog has logs
    try:
        paths = {name: _paths(connection, name) for name in names}
        warnings = []
        if missing := [name for name in names if not paths[name]]:
            # An event with an empty payload has no paths, so only the list of names tells whether it arrived.
            arrived = [entry["event"] for entry in connection.get("/events/catalog", limit=200)["events"]]
            warnings += [unknown_event_message(name, arrived) for name in missing if name not in arrived]
    except WorkbenchError:
        return []
    if path and names and (first_paths := paths[names[0]]):
        if path not in first_paths:
            warnings.append(unknown_property_message(path, (names[0],), first_paths))
        elif number and "number" not in first_paths[path]:
            types = " or ".join(TYPE_WORDS[kind] for kind in sorted(first_paths[path])) or "null"
            warnings.append(f"{path!r} in {names[0]} was never a number, but {types}")
    return warnings


def _paths(connection: Connection, event: str) -> dict[str, dict[str, int]]:
    """Return the counts of types at each path of an event; empty for an unknown event, or one with an empty payload."""
    try:
        return {path["path"]: path["types"] for path in connection.get(f"/events/catalog/{event}")["paths"]}
    except NotFoundError:
        return {}


@contextmanager
def _progress_shown(connection: Connection) -> Iterator[None]:
    """Show how far the service has counted a report that takes longer than a second, until the block ends."""
    ended, line, shown = Event(), ProgressLine(), False

    def poll() -> None:
        nonlocal shown
        with suppress(WorkbenchError):
            while not ended.wait(PROGRESS_INTERVAL_S):
                response = connection.request("GET", "/reports/progress", timeout_s=PROGRESS_INTERVAL_S)
                progress = msgspec.convert(connection.check(response).body, ReportProgress)
                if progress.buckets and not ended.is_set():
                    counted, buckets, shown = progress.counted, progress.buckets, True
                    line.show("Report", f"{counted} of {buckets} buckets of contacts", "busy", counted / buckets)

    thread = Thread(target=poll, name="report progress", daemon=True)
    thread.start()
    state, look = "stopped", "bad"
    try:
        yield
        state, look = "counted", "good"
    finally:
        ended.set()
        thread.join()
        if shown:
            line.show("Report", state, look)


def _period(arguments: ReportArguments, as_of: str | None, values: dict[str, Any]) -> tuple[datetime, datetime | None]:
    """Return the beginning of the period, and its end if it was given."""
    now = environment.now()
    if as_of is not None:
        try:
            # A watermark starts with its time. The service checks the rest.
            now = datetime.fromisoformat(as_of.partition("~")[0]).astimezone(UTC)
        except ValueError:
            raise InvalidArgumentError(
                f"as_of={as_of!r} is not a watermark: pass an earlier result, as_of=report"
            ) from None
    period = read_period(arguments)
    end = period.get("until", now)
    if "since" in period:
        begin = period["since"]
    elif "periods" in values and "days" not in arguments:
        begin = start_of_period(end, values["every"], values["periods"])
    else:
        begin = end - timedelta(days=period["days"])
    if "until" in period and begin >= end:
        since, until = arguments.get("since"), arguments.get("until")
        raise InvalidArgumentError(f"the period ends before it begins: since={since!r}, until={until!r}")
    return begin, period.get("until")


def _relative(
    arguments: ReportArguments, values: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, RelativeTime]:
    """Return the values of a query that count back from the time at which it runs; none with `since=` or `until=`."""
    period = read_period(arguments)
    if "since" in period or "until" in period:
        return {}
    if "periods" in values and "days" not in arguments:
        since = RelativeTime(every=values["every"], periods=values["periods"])
        previous = RelativeTime(every=values["every"], periods=values["periods"] + 1)
    else:
        seconds = timedelta(days=period["days"]).total_seconds()
        since = RelativeTime(seconds=seconds)
        # Without the microsecond, it would be too early for a period that begins exactly then.
        previous = RelativeTime(seconds=seconds - 1e-6, every=values.get("every"), periods=1)
    relative = {"since": since, "previous": previous, "now": RelativeTime()}
    return {name: time for name, time in relative.items() if name in params}


def _segments(arguments: ReportArguments) -> list[str]:
    """Return the segments of a report; none for all contacts."""
    segment, segments = arguments.get("segment"), arguments.get("segments")
    if segments is None:
        return [] if segment is None else [segment]
    if segment is not None:
        raise InvalidArgumentError("pass segment= or segments=, not both")
    names: object = segments  # of any type, whatever the annotation says
    is_list = (
        isinstance(names, Collection) and not isinstance(names, str) and all(isinstance(name, str) for name in names)
    )
    if not is_list or not 2 <= len(segments) == len(set(segments)):
        raise InvalidArgumentError(
            f'segments={segments!r} must name two or more different segments, such as ["whales", "others"]'
        )
    return list(segments)


def _path(path: object) -> str:
    if not isinstance(path, str) or not all(path.split(".")):
        raise InvalidArgumentError(f'{path!r} is not a path into a payload: "amountUsd", "asset.name"')
    return path


def _group(by: str | None) -> str | None:
    return None if by is None else _path(by)


def _event(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f'{name!r} is not the name of an event: "deposit"')
    return name.lower()


def _optional_event(name: object) -> str | None:
    return None if name is None else _event(name)


def _every(every: object) -> str:
    if not isinstance(every, str) or every not in get_args(Every):
        raise InvalidArgumentError(f"every={every!r} must be one of {', '.join(get_args(Every))}")
    return every


def _span(span: Span) -> int:
    return seconds_of(span, "within")
