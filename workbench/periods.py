"""Periods as people write them: the last so many days, or from one moment up to another. Without a zone it is UTC."""

from datetime import UTC, date, datetime
from typing import TypeAlias, TypedDict

from workbench.errors import DraftError

Moment: TypeAlias = datetime | date | str

MOST_DAYS = 36_500


class During(TypedDict, total=False):
    """The last `days` (30 unless told), or from `since` up to `until` (default now)."""

    days: int
    since: Moment
    until: Moment


class Period(TypedDict, total=False):
    """The same, read: `days` or `since`, and `until` where it was given."""

    days: int
    since: datetime
    until: datetime


def read_period(during: During) -> Period:
    """Return a period; raise DraftError saying what is wrong with it."""
    if "days" in during and "since" in during:
        raise DraftError("a period is the last `days`, or from `since` on: not both")
    since, until = during.get("since"), during.get("until")
    period: Period = {"days": whole(during.get("days", 30), "days", MOST_DAYS)} if since is None else {}
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
        raise DraftError(f'{what}={moment!r} is not a moment: write "2026-11-01" or "2026-11-01T12:00:00Z"')
    if not isinstance(at, datetime):
        return datetime(at.year, at.month, at.day, tzinfo=UTC)
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


def whole(number: object, what: str, most: int) -> int:
    """Return a whole number from 1 to `most`; raise DraftError for anything else."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise DraftError(f"{what}={number!r} must be a whole number from 1 to {most}")
    return number
