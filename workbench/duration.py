"""Periods and durations as users write them.

A period is the last `days`, or from one time to another; dates, and texts without a zone, are in UTC. A duration is a
`timedelta` or a text like `"2d"`, `"1h 30m"` or `"3 days"`.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias, TypedDict, get_args

from workbench.errors import InvalidArgumentError

Moment: TypeAlias = datetime | date | str

MAX_DAYS = 36_500


class PeriodArguments(TypedDict, total=False):
    """The last `days` (default: 30), or from `since` up to `until` (default: now)."""

    days: int
    since: Moment
    until: Moment


class Period(TypedDict, total=False):
    """A checked period in UTC: `days` or `since`, and `until` if it was given."""

    days: int
    since: datetime
    until: datetime


def read_period(arguments: PeriodArguments) -> Period:
    """Return the period that arguments describe; raise InvalidArgumentError naming the argument that is wrong."""
    if "days" in arguments and "since" in arguments:
        raise InvalidArgumentError("pass `days` or `since`, not both")
    since, until = arguments.get("since"), arguments.get("until")
    period: Period = {"days": whole_number(arguments.get("days", 30), "days", MAX_DAYS)} if since is None else {}
    if since is not None:
        period["since"] = moment_of(since, "since")
    if until is not None:
        period["until"] = moment_of(until, "until")
    return period


def moment_of(moment: Moment, argument: str) -> datetime:
    """Return a time in UTC; a date becomes its midnight. Raises InvalidArgumentError naming the argument."""
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        at = None
    if not isinstance(at, date):
        raise InvalidArgumentError(
            f'{argument}={moment!r} is not a date or time: write "2026-11-01" or "2026-11-01T12:00:00Z"'
        )
    if not isinstance(at, datetime):  # datetime is a subclass of date, so this is a day
        return datetime(at.year, at.month, at.day, tzinfo=UTC)
    if at.tzinfo is None and at is moment:  # a text without a zone is in UTC, but `datetime.now()` is in local time
        raise InvalidArgumentError(f"{argument}={moment!r} needs a time zone: datetime(…, tzinfo=UTC)")
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


def whole_number(number: object, argument: str, maximum: int) -> int:
    """Return a whole number from 1 to `maximum`; raise InvalidArgumentError naming the argument for anything else."""
    # bool is a subclass of int: without this check True would count as 1.
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= maximum:
        raise InvalidArgumentError(f"{argument}={number!r} must be a whole number from 1 to {maximum}")
    return number


_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART_PATTERN = r"(\d+(?:\.\d+)?)\s*(weeks?|w|days?|d|hours?|h|minutes?|min|m|seconds?|s)\s*"
_DURATION = re.compile(rf"\s*(?:{_PART_PATTERN})+", re.IGNORECASE)
_PART = re.compile(_PART_PATTERN, re.IGNORECASE)


def seconds_of(span: object, argument: str, least: int = 1) -> int:
    """Return a duration in whole seconds; raise InvalidArgumentError naming the argument if it is not at least one.

    `least=0` also takes no time at all: `"0s"`.
    """
    duration = span
    if isinstance(span, str):
        # findall on its own would skip text between the parts, so the whole text has to match first.
        parts = _PART.findall(span) if _DURATION.fullmatch(span) else None
        try:
            lengths = [timedelta(**{_UNITS[unit[0].lower()]: float(number)}) for number, unit in parts or ()]
            duration = None if parts is None else sum(lengths, timedelta())
        except OverflowError:
            duration = None
    if not isinstance(duration, timedelta) or duration < timedelta(seconds=least):
        raise InvalidArgumentError(
            f'{argument}={span!r} is not a duration: write "30s", "15m", "2h", "3d", "1w" or "1h 30m"'
        )
    return round(duration.total_seconds())


def signed_seconds_of(span: object, argument: str) -> int:
    """Return a duration that may be negative, like `"-3d"`, in whole seconds; raise as `seconds_of` does."""
    if isinstance(span, str) and span.startswith("-"):
        return -seconds_of(span[1:], argument)
    if isinstance(span, timedelta) and span < timedelta():
        return -seconds_of(-span, argument)
    return seconds_of(span, argument)


Weekday: TypeAlias = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def weekday_number(day: object) -> int:
    """Return the number of a weekday, from 1 (Monday) to 7; raise InvalidArgumentError for anything else."""
    if day not in get_args(Weekday):
        raise InvalidArgumentError(f"weekdays has {day!r}: write a list of {', '.join(get_args(Weekday))}")
    return get_args(Weekday).index(day) + 1
