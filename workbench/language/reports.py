"""The built-in reports: the arguments of each, and the query in `sql/reports` that answers it.

A notebook sends the arguments to the service, which answers from the parts or runs the query. Both sides write the
same query from them: the service to run it, the notebook to show it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from workbench.language.body import Body, Moment
from workbench.language.event import LOG_NAME
from workbench.language.problem import Problem, Problems
from workbench.language.sql import tokenize

Every: TypeAlias = Literal["day", "week", "month"]
Statement: TypeAlias = Callable[..., str]
"""Renders a template of `sql/reports`: its name, and what it decides its structure from."""

MAX_STEPS = 12  # of a funnel or a path
MAX_PERIODS = 366
MAX_PATHS = 1_000
MAX_SEGMENTS = 100
MAX_SPAN_S = 36_500 * 86_400
SPANS = [
    *("1 minute", "5 minutes", "15 minutes", "1 hour", "3 hours", "6 hours", "12 hours"),
    *("1 day", "2 days", "3 days", "7 days", "14 days", "30 days", "60 days", "90 days"),
]


def _read_path(value: Any, path: str) -> str | Problems:
    is_path = isinstance(value, str) and all(value.split("."))
    return value if is_path else (Problem(path, "must be a path: names with a dot between them"),)


EventName: TypeAlias = Annotated[str, Meta(min_length=1)]
PayloadPath: TypeAlias = Annotated[str, Meta(extra={"read": _read_path})]
Seconds: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SPAN_S)]
Periods: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PERIODS)]
Steps: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_STEPS)]


class ReportBody(Body, frozen=True, kw_only=True, rename="camel"):
    """The arguments of every report. `since` and `until` (default: now) bound when events occurred.

    `segments`: only events of contacts that are in this segment now; for several, one report each. `asOf`: the
    watermark of an earlier result.
    """

    name: ClassVar[str]
    structure: ClassVar[tuple[str, ...]] = ()  # the fields whose presence the template asks for

    since: Moment
    until: Moment | None = None
    segments: Annotated[tuple[str, ...], Meta(max_length=MAX_SEGMENTS)] = ()
    as_of: str | None = None

    def conflicts(self) -> Iterable[Problem]:
        if self.until is not None and self.until <= self.since:
            yield Problem("until", "must be after since")
        if self.as_of is not None and self.until is None and _moment(self.as_of) is None:
            yield Problem("asOf", "is not the watermark of a result of this organization")

    @property
    def by(self) -> str | None:
        """A path into the payload or contacts, by which numbers are divided. Some reports have the field."""
        return None

    @property
    def value(self) -> str | None:
        """A path into the payload, to the number that is added up. Some reports have the field."""
        return None

    def events(self) -> dict[str, str]:
        """Return the names of the events that the report is about, by the parameters of its query."""
        names = {name: getattr(self, name, None) for name in ("start", "event", "back", "goal")}
        return {parameter: name.lower() for parameter, name in names.items() if name is not None}

    @property
    def logs(self) -> list[str]:
        """The names of logs among them, such as `0x…:transfer`. The report counts no other logs."""
        return [name for name in dict.fromkeys(self.events().values()) if LOG_NAME.fullmatch(name)]

    def values(self) -> dict[str, Any]:
        """Return the values of its query by parameter, without those of the period, the group and the segments."""
        values: dict[str, Any] = dict(self.events())
        for name in ("every", "periods", "limit"):
            if getattr(self, name, None) is not None:
                values[name] = getattr(self, name)
        if self.value is not None:
            values["value"] = self.value.split(".")
        if (seconds := getattr(self, "within_seconds", None)) is not None:
            values["within"] = f"{seconds} seconds"
        return values

    @property
    def group(self) -> tuple[Literal["segment", "contact", "event"], str] | None:
        """The values that `by` names: the segments of contacts, or a path into their attributes or into the payload."""
        match self.by:
            case None:
                return None
            case "contact.segments":
                return "segment", ""
            case path if path.startswith("contact."):
                return "contact", path.removeprefix("contact.")
            case path:
                return "event", path


class Funnel(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """How many contacts took each of some steps, in order and within a span from the first one."""

    name: ClassVar = "funnel"

    steps: Annotated[tuple[EventName, ...], Meta(min_length=1, max_length=MAX_STEPS)]
    within_seconds: Seconds = 7 * 86_400
    by: PayloadPath | None = None

    def events(self) -> dict[str, str]:
        return {f"step_{number}": name.lower() for number, name in enumerate(self.steps, 1)}


class Retention(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """How many contacts came back, by the period of their first `start` ever."""

    name: ClassVar = "retention"
    structure: ClassVar = ("back",)

    start: EventName
    back: EventName | None = None
    every: Every = "week"
    periods: Periods = 8


class Cohorts(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """The number of `event`, or the total of its `value`, by the period of contacts' first `start` ever."""

    name: ClassVar = "cohorts"
    structure: ClassVar = ("value",)

    start: EventName
    event: EventName
    value: PayloadPath | None = None
    every: Every = "month"
    periods: Periods = 6


class ActiveUsers(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """How many contacts had any event, or `event`, in each period."""

    name: ClassVar = "active_users"
    structure: ClassVar = ("event",)

    event: EventName | None = None
    every: Every = "day"

    def values(self) -> dict[str, Any]:
        # The period before the one that contains `since`: the end is exclusive.
        begin = self.since
        if begin.year > 1:
            begin = start_of_period(begin + timedelta(microseconds=1), self.every, 1)
        return super().values() | {"previous": begin.isoformat()}


class Paths(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """The most frequent sequences of events from a contact's first `start`, or first event."""

    name: ClassVar = "paths"
    structure: ClassVar = ("start",)

    start: EventName | None = None
    steps: Steps = 4
    within_seconds: Seconds = 7 * 86_400
    limit: Annotated[int, Meta(ge=1, le=MAX_PATHS)] = 20

    def values(self) -> dict[str, Any]:
        return super().values() | {"steps": self.steps}


class Revenue(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """The total of a number in the payload of `event`; with `every`, one total per period."""

    name: ClassVar = "revenue"
    structure: ClassVar = ("every",)

    event: EventName
    value: PayloadPath
    every: Every | None = None
    by: PayloadPath | None = None


class TimeToConvert(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """How long contacts took from their first `start` to the next `goal`."""

    name: ClassVar = "time_to_convert"

    start: EventName
    goal: EventName
    within_seconds: Seconds = 30 * 86_400

    def values(self) -> dict[str, Any]:
        return super().values() | {"spans": SPANS}


class MessagePerformance(ReportBody, frozen=True, kw_only=True, rename="camel"):
    """The outcomes of messages, and how many contacts then reached a goal."""

    name: ClassVar = "message_performance"
    structure: ClassVar = ("goal",)

    goal: EventName | None = None
    within_seconds: Seconds = 7 * 86_400


class ReportProgress(msgspec.Struct, frozen=True):
    """A report that is being counted over parts: `counted` of its `buckets` of contacts. Without a name: none is."""

    report: str | None = None
    counted: int = 0
    buckets: int = 0


REPORTS: tuple[type[ReportBody], ...] = (
    Funnel,
    Retention,
    Cohorts,
    ActiveUsers,
    Paths,
    Revenue,
    TimeToConvert,
    MessagePerformance,
)


class ReportQuery(msgspec.Struct, frozen=True):
    """A statement and the values of its `:name` parameters."""

    text: str
    params: Mapping[str, Any]


def report_query(
    report: ReportBody, statement: Statement, counted: Sequence[str] = (), now: datetime | None = None
) -> ReportQuery:
    """Return the query of a report.

    `counted`: what the kernels counted, as JSON, for each segment or for all contacts. The query then reads no events,
    and only puts these numbers into the columns and the order of the report. `now`: the moment of the snapshot in which
    they were counted.
    """
    now = now if report.as_of is None else _moment(report.as_of)
    period = {"until": report.until is not None, "past": now is not None, "logs": bool(report.logs)}
    params = report.values() | {"since": report.since.isoformat()}
    if report.logs:
        params["logs"] = report.logs
        params["contracts"] = sorted({name.partition(":")[0] for name in report.logs})
    if report.until is not None:
        params["until"] = report.until.isoformat()
    elif now is not None:
        params["now"] = now.isoformat()
    source, by = report.group or (None, "")
    if by:
        params["by"] = by.split(".")
    # A key of the payload may itself contain dots, so the query tries the whole path as one key first.
    dotted = [param for param in ("by", "value") if len(params.get(param, ())) > 1]
    params |= {f"{param}_key": ".".join(params[param]) for param in dotted}
    several = len(report.segments) > 1
    segments = [f"segment_{number}" for number in range(len(report.segments))] if several else ["segment"]
    params |= dict(zip(segments, report.segments, strict=False))
    structure: dict[str, Any] = {name: getattr(report, name) is not None for name in report.structure}
    if isinstance(report, Funnel):
        structure["steps"] = list(range(1, len(report.steps) + 1))
    rows = [f"counted_{number}" for number in range(len(counted))]
    params |= dict(zip(rows, counted, strict=True))
    texts = [
        statement(
            report.name,
            period=period | {"segment": segment if report.segments else ""},
            by=source,
            dotted=dotted,
            counted=rows[number] if rows else "",
            **structure,
        )
        for number, segment in enumerate(segments)
    ]
    text = statement("compared", reports=texts) if several else texts[0]
    used = {token.text[1:] for token in tokenize(text) if token.kind == "name"}
    return ReportQuery(text, {name: value for name, value in params.items() if name in used})


def start_of_period(end: datetime, every: Every, periods: int) -> datetime:
    """Return the start, in UTC, of the day, week or month that is `periods` before the one in which a period ends."""
    day = (end - timedelta(microseconds=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    match every:
        case "day":
            return day - timedelta(days=periods)
        case "week":
            return day - timedelta(days=day.weekday(), weeks=periods)
        case "month":
            months = day.year * 12 + day.month - 1 - periods
            return day.replace(year=months // 12, month=months % 12 + 1, day=1)


def _moment(watermark: str) -> datetime | None:
    """Return the time that a watermark starts with. Whether the rest is genuine is checked by the service."""
    try:
        return datetime.fromisoformat(watermark.partition("~")[0]).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
