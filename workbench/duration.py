"""Periods as people write them: the last so many days, or from one moment up to another. Without a zone it is UTC.

Spans of time as people write them: `"2d"`, `"1h 30m"`, `"3 days"`, `timedelta(days=2)`.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias, TypedDict

from workbench.errors import InvalidArgumentError

Moment: TypeAlias = datetime | date | str

MAX_DAYS = 36_500


class PeriodArguments(TypedDict, total=False):
    """The last `days` (30 unless told), or from `since` up to `until` (default now)."""

    days: int
    since: Moment
    until: Moment


class Period(TypedDict, total=False):
    """The same, read: `days` or `since`, and `until` where it was given."""

    days: int
    since: datetime
    until: datetime


def read_period(during: PeriodArguments) -> Period:
    """Return a period; raise InvalidArgumentError saying what is wrong with it."""
    if "days" in during and "since" in during:
        raise InvalidArgumentError("a period is the last `days`, or from `since` on: not both")
    since, until = during.get("since"), during.get("until")
    period: Period = {"days": whole_number(during.get("days", 30), "days", MAX_DAYS)} if since is None else {}
    if since is not None:
        period["since"] = moment_of(since, "since")
    if until is not None:
        period["until"] = moment_of(until, "until")
    return period


def moment_of(moment: Moment, what: str) -> datetime:
    """Return a moment in UTC; days and moments without a zone are UTC."""
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        at = None
    if not isinstance(at, date):
        raise InvalidArgumentError(f'{what}={moment!r} is not a moment: write "2026-11-01" or "2026-11-01T12:00:00Z"')
    if not isinstance(at, datetime):
        return datetime(at.year, at.month, at.day, tzinfo=UTC)
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


def whole_number(number: object, what: str, most: int) -> int:
    """Return a whole number from 1 to `most`; raise InvalidArgumentError for anything else."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise InvalidArgumentError(f"{what}={number!r} must be a whole number from 1 to {most}")
    return number


_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_ONE = r"(\d+(?:\.\d+)?)\s*(weeks?|w|days?|d|hours?|h|minutes?|min|m|seconds?|s)\s*"
_SPAN = re.compile(rf"\s*(?:{_ONE})+", re.IGNORECASE)
_PART = re.compile(_ONE, re.IGNORECASE)


def seconds_of(span: object, what: str) -> int:
    """Return a span in whole seconds; raise InvalidArgumentError, naming `what` was meant, when it is none."""
    length = _read(span) if isinstance(span, str) else span
    if not isinstance(length, timedelta) or length < timedelta(seconds=1):
        raise InvalidArgumentError(
            f'{what}={span!r} is not a span of time: write "30s", "15m", "2h", "3d", "1w" or "1h 30m"'
        )
    return round(length.total_seconds())


def _read(text: str) -> timedelta | None:
    if not _SPAN.fullmatch(text):
        return None
    try:
        return sum(
            (timedelta(**{_UNITS[unit[0].lower()]: float(number)}) for number, unit in _PART.findall(text)), timedelta()
        )
    except OverflowError:
        return None
