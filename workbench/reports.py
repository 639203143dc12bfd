"""Why a ready-made question may have found nothing: names of events, and of what is in them, that the catalog does not know.

Questions that are asked everywhere, ready-made: the SQL is in `sql/reports`, and every answer shows the one it came from.
"""

from abc import ABC
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, get_args

import msgspec

from workbench import duration, environment
from workbench.connection import Connection
from workbench.duration import MAX_DAYS, moment_of, seconds_of
from workbench.duration import whole_number as _count
from workbench.errors import InvalidArgumentError, NotFoundError, WorkbenchError, usage_example
from workbench.language.check import unknown_event_message, unknown_property_message
from workbench.segments import require_segment
from workbench.sql import SqlQuery, sql, statement, watermark

if TYPE_CHECKING:
    from workbench.display.charts import Report
    from workbench.frames import Result


def doubts(
    connection: Connection, events: Iterable[str], path: str | None = None, *, number: bool = False
) -> list[str]:
    """Return a sentence for each of the events that has not come lately, and for a path that is not in the first of them.

    `number`: numbers were looked for there. None when the catalog cannot be asked: a hint is not worth an error.
    """
    names = list(dict.fromkeys(events))
    try:
        return [
            *_unknown_events(connection, names),
            *(_unknown_path(connection, names[0], path, number) if path else ()),
        ]
    except WorkbenchError:
        return []


def _unknown_events(connection: Connection, names: Iterable[str]) -> Iterator[str]:
    missing = [name for name in names if not _paths(connection, name)]
    if missing:
        known = [each["event"] for each in connection.get("/events/catalog", limit=200)["events"]]
        yield from (unknown_event_message(name, known) for name in missing if name not in known)


def _unknown_path(connection: Connection, event: str, path: str, number: bool) -> Iterator[str]:
    found = _paths(connection, event)
    if found and path not in found:
        yield unknown_property_message(path, (event,), found)
    elif found and number and "number" not in found[path]:
        seen = " or ".join(_TYPES[kind] for kind in sorted(found[path])) or "null"
        yield f"{path!r} in {event} was never a number, but {seen}"


_TYPES = {"string": "text", "boolean": "a yes/no value", "array": "a list", "object": "an object"}


def _paths(connection: Connection, event: str) -> dict[str, dict[str, int]]:
    """Return the types seen at each path of an event; nothing of one that was never seen, or has an empty payload."""
    try:
        return {each["path"]: each["types"] for each in connection.get(f"/events/catalog/{event}")["paths"]}
    except NotFoundError:
        return {}


Every: TypeAlias = Literal["day", "week", "month"]
Span: TypeAlias = str | timedelta

MOST_STEPS = 12
_SPANS = ["1 minute", "5 minutes", "15 minutes", "1 hour", "3 hours", "6 hours", "12 hours", "1 day", "2 days", "3 days",
          "7 days", "14 days", "30 days", "60 days", "90 days"]  # fmt: skip


class ReportArguments(duration.PeriodArguments, total=False):
    """When the events occurred: in the last `days` (30 unless said otherwise) before `until` (default now), or from `since` up to it.

    `segment`: only what its members did; members are those of now, whenever they entered. `as_of`: an earlier result, or its
    `watermark`: the events, and the moment from which the days count back, are those of then.
    """

    segment: str
    as_of: "str | Result | None"


class _Period(msgspec.Struct, frozen=True):
    """Whether it has an end, is of a segment, and is asked as of an earlier moment; what they are is bound."""

    until: bool
    segment: bool
    past: bool


class Reports(ABC):
    """The ready-made questions. Each returns a polars frame that draws itself, and knows its query like a result of `wb.sql`."""

    _connection: Connection

    @usage_example('wb.funnel(["signup", "deposit"], within="7d")')
    def funnel(
        self, steps: Sequence[str], *, within: Span = "7d", by: str | None = None, **during: Unpack[ReportArguments]
    ) -> "Report":
        """Return how many contacts took each step after the ones before it, within a span of the first.

        Columns: step, event, contacts, of_first, of_previous (0 to 1), median_seconds (from the first step on). `by`
        (`"contact.plan"`, or a property of the first step's payload like `"method"`) splits contacts up: column part.
        """
        names = _events(steps, "steps")
        if not 2 <= len(names) <= MOST_STEPS:
            raise InvalidArgumentError(f"a funnel has 2 to {MOST_STEPS} steps, not {len(names)}")
        values = {f"step_{number}": name for number, name in enumerate(names, 1)}
        return self._report(
            "funnel",
            f"Funnel within {within}{f' by {by}' if by else ''}",
            {"steps": list(range(1, len(names) + 1))},
            {**values, "within": _span(within, "within")},
            during,
            by,
        )

    @usage_example('wb.retention("signup", every="week")')
    def retention(
        self,
        start: str,
        back: str | None = None,
        *,
        every: Every = "week",
        periods: int = 8,
        **during: Unpack[ReportArguments],
    ) -> "Report":
        """Return how many of those who first did `start` came back in each later day, week or month, with `back` or any event.

        Columns: cohort (its beginning, UTC), size, number (of the period, from 0), contacts, share (0 to 1). Unless told otherwise it
        looks at the last `periods` of them and the one under way.
        """
        values = {"start": _event(start), "every": _every(every), "periods": _count(periods, "periods", 366)}
        asked = {"back": _event(back)} if back is not None else {}
        title = f"Back with {back or 'any event'} after {start}, by {every}"
        return self._report(
            "retention", title, {"back": back is not None}, values | asked, _long_enough(during, every, periods)
        )

    @usage_example('wb.cohorts("signup", "deposit", value="amountUsd", every="month")')
    def cohorts(
        self,
        start: str,
        event: str,
        *,
        value: str | None = None,
        every: Every = "month",
        periods: int = 6,
        **during: Unpack[ReportArguments],
    ) -> "Report":
        """Return what contacts did after their first `start`, by the period of it: how often, or what `value` adds up to.

        Columns: cohort, size, number, events, total, per_contact, so_far (per contact, with the periods before). Unless told otherwise it
        looks at the last `periods` of them and the one under way.
        """
        values: dict[str, Any] = {
            "start": _event(start),
            "event": _event(event),
            "every": _every(every),
            "periods": _count(periods, "periods", 366),
        }
        if value is not None:
            values["value"] = _path(value)
        title = f"{value or 'Events'} of {event} per contact after {start}, by {every}"
        return self._report(
            "cohorts", title, {"value": value is not None}, values, _long_enough(during, every, periods)
        )

    @usage_example('wb.active_users(every="day")')
    def active_users(
        self, event: str | None = None, *, every: Every = "day", **during: Unpack[ReportArguments]
    ) -> "Report":
        """Return how many contacts did something (or `event`) in each day, week or month.

        Columns: at (the beginning, UTC), contacts, new (not seen before in the period asked about), stayed (seen the time
        before), events.
        """
        values = {"every": _every(every)} | ({"event": _event(event)} if event is not None else {})
        title = f"Active contacts{f' with {event}' if event else ''} by {every}"
        return self._report("active_users", title, {"event": event is not None}, values, during)

    @usage_example('wb.paths("signup", steps=4, within="1d")')
    def paths(
        self,
        start: str | None = None,
        *,
        steps: int = 4,
        within: Span = "7d",
        limit: int = 20,
        **during: Unpack[ReportArguments],
    ) -> "Report":
        """Return what contacts do after their first `start` (or first event): the most frequent ways of a few steps.

        Columns: path (list of event names), contacts, share (of all that began).
        """
        values = {
            "steps": _count(steps, "steps", MOST_STEPS),
            "within": _span(within, "within"),
            "limit": _count(limit, "limit", 1_000),
        }
        asked = {"start": _event(start)} if start is not None else {}
        title = f"Paths after {start or 'the first event'}, within {within}"
        return self._report("paths", title, {"start": start is not None}, values | asked, during)

    @usage_example('wb.revenue("deposit", "amountUsd", by="asset")')
    def revenue(self, event: str, value: str, *, by: str | None = None, **during: Unpack[ReportArguments]) -> "Report":
        """Return what a number in an event adds up to, by a property of its payload or of the contact (`"contact.plan"`).

        Columns: part (with `by`), events, contacts, total, mean, median, largest. Events without that number count as events.
        """
        values = {"event": _event(event), "value": _path(value)}
        return self._report("revenue", f"{value} of {event}{f' by {by}' if by else ''}", {}, values, during, by)

    @usage_example('wb.time_to_convert("signup", "deposit", within="30d")')
    def time_to_convert(
        self, start: str, goal: str, *, within: Span = "30d", **during: Unpack[ReportArguments]
    ) -> "Report":
        """Return how long contacts took from their first `start` to the next `goal`.

        Columns: after_seconds, within_seconds (the span), contacts, share (of all that started), share_so_far.
        """
        values = {"start": _event(start), "goal": _event(goal), "within": _span(within, "within"), "spans": _SPANS}
        return self._report("time_to_convert", f"From {start} to {goal}", {}, values, during)

    @usage_example('wb.message_performance(goal="deposit", within="3d")')
    def message_performance(
        self, goal: str | None = None, *, within: Span = "7d", **during: Unpack[ReportArguments]
    ) -> "Report":
        """Return what became of messages, by automation, node and channel, and how many contacts then reached a goal.

        Columns: automation, node_id, channel, messages, sent, delivered, failed, skipped, unknown, contacts; with `goal` also
        converted (contacts) and rate (0 to 1). Who would have reached the goal anyway is among them.
        """
        values = {"goal": _event(goal), "within": _span(within, "within")} if goal is not None else {}
        title = f"Messages{f' and {goal} within {within}' if goal else ''}"
        return self._report("message_performance", title, {"goal": goal is not None}, values, during)

    def _report(
        self,
        name: str,
        title: str,
        structure: dict[str, Any],
        values: dict[str, Any],
        during: ReportArguments,
        by: str | None = None,
    ) -> "Report":
        from workbench.display.charts import report

        as_of = watermark(during.get("as_of", ""))
        period, bounds = _period(during, as_of)
        segment = during.get("segment")
        if segment is not None:
            require_segment(self._connection, segment)
            title, bounds = f"{title}, of {segment}", bounds | {"segment": segment}
        of, path = _property(by)
        params = values | bounds | ({"by": path} if path else {})
        dotted = [each for each in ("by", "value") if len(params.get(each, ())) > 1]
        params |= {f"{each}_key": ".".join(params[each]) for each in dotted}
        text = statement(name, period=period, by=of, dotted=dotted, **structure)
        if ":now" not in text:
            params.pop("now", None)
        rows = sql(self._connection, SqlQuery(text, params, as_of))
        return report(rows, name, title, self._doubts(rows, values, path if of == "event" else None))

    def _doubts(self, rows: "Result", values: dict[str, Any], by: list[str] | None) -> list[str]:
        """Return why little was found, where a name may be the reason."""
        events = [values[name] for name in values if name in _EVENTS or name.startswith("step_")]
        if rows.is_empty() or _nothing(rows):
            return doubts(self._connection, events)
        if "value" in values and not rows["total"].drop_nulls().len():
            return doubts(self._connection, [values["event"]], ".".join(values["value"]), number=True)
        if by is not None and rows["part"].drop_nulls().is_empty():
            return doubts(self._connection, events[:1], ".".join(by))
        return []


_EVENTS = ("start", "event", "back", "goal")


def _nothing(rows: "Result") -> bool:
    """Return whether nobody took a step, came back, or did anything that was asked for."""
    if "step" in rows.columns:
        return 0 in rows["contacts"]
    if "share" in rows.columns and "number" in rows.columns:  # whoever began is back at once
        return not rows.filter(rows["number"] > 0)["contacts"].sum()
    counts = next(name for name in ("converted", "events", "contacts") if name in rows.columns)
    return not rows[counts].sum()


def _long_enough(during: ReportArguments, every: Every, periods: int) -> ReportArguments:
    """Return a period that has room for so many of its parts, where none is given."""
    if "days" in during or "since" in during:
        return during
    return {**during, "days": min((periods + 1) * _DAYS[every], MAX_DAYS)}


_DAYS: dict[Every, int] = {"day": 1, "week": 7, "month": 31}


def _period(during: ReportArguments, as_of: str | None) -> tuple[_Period, dict[str, Any]]:
    """Return the period, and the values of its ends."""
    if "days" in during and "since" in during:
        raise InvalidArgumentError("a period is the last `days`, or from `since` on: not both")
    since, until = during.get("since"), during.get("until")
    now = environment.now() if as_of is None else _asked_at(as_of)
    end = now if until is None else moment_of(until, "until")
    begin = end - timedelta(days=_count(during.get("days", 30), "days", MAX_DAYS))
    begin = begin if since is None else moment_of(since, "since")
    bounds = {"since": begin.isoformat()}
    if until is not None:
        if begin >= end:
            raise InvalidArgumentError(f"the period ends before it begins: since={since!r}, until={until!r}")
        bounds["until"] = end.isoformat()
    elif as_of is not None:
        bounds["now"] = now.isoformat()
    return _Period(until is not None, during.get("segment") is not None, as_of is not None), bounds


def _asked_at(mark: str) -> datetime:
    """Return the moment with which a watermark begins; whether it is one, the service says."""
    try:
        return datetime.fromisoformat(mark.partition("~")[0]).astimezone(UTC)
    except ValueError:
        raise InvalidArgumentError(
            f"as_of={mark!r} is not a watermark: give it an earlier result, as_of=report"
        ) from None


def _property(by: object) -> tuple[str | None, list[str] | None]:
    """Return where a property is, in the event or in the contact, and its path."""
    if by is None:
        return None, None
    if isinstance(by, str) and by.startswith("contact."):
        return "contact", _path(by.removeprefix("contact."))
    return "event", _path(by)


def _path(path: object) -> list[str]:
    if not isinstance(path, str) or not all(path.split(".")):
        raise InvalidArgumentError(f'{path!r} is not a path into a payload: "amountUsd", "asset.name"')
    return path.split(".")


def _event(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f'{name!r} is not the name of an event: "deposit"')
    return name.lower()


def _events(names: Sequence[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidArgumentError(f'{what} are a list of event names: ["signup", "deposit"]')
    return [_event(name) for name in names]


def _every(every: object) -> str:
    if not isinstance(every, str) or every not in get_args(Every):
        raise InvalidArgumentError(f"every={every!r} must be one of {', '.join(get_args(Every))}")
    return every


def _span(span: Span, what: str) -> str:
    return f"{seconds_of(span, what)} seconds"
