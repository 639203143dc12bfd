"""Time zones, and the moments at which a clock in one of them shows a time of day.

A time that the clock skips comes as much later as the clock was set forward; of a time that it shows twice, the first
one counts.
"""

import re
from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from workbench.language.codec import Json
from workbench.language.event import parse_timestamp

TIMEZONE_ATTRIBUTE = "timezone"  # of the contact, unless an automation names another one

NOT_A_ZONE = "must be the name of a time zone, like Europe/Zurich"

MAX_CLOCK_SETBACK = timedelta(hours=7)  # the largest step back of any zone's clocks since 1970
LONGEST_DAY = timedelta(days=1) + MAX_CLOCK_SETBACK

_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_MAX_ZONE_LENGTH = 64  # characters; the longest IANA name has 32
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_zone(*names: Json) -> tzinfo:
    """Return the time zone with the first of these IANA names that names one; otherwise UTC."""
    return next(filter(None, map(find_zone, names)), UTC)


def find_zone(name: Json) -> tzinfo | None:
    """Return the time zone with an IANA name, such as `Europe/Zurich`; None for any other value."""
    # `name` is data of a contact. The pattern keeps paths such as `../x` away from the zone files on disk.
    if isinstance(name, str) and len(name) <= _MAX_ZONE_LENGTH and _ZONE.fullmatch(name):
        return _load_zone(name)
    return None


# The zone files are the only thing that the language reads from disk: data of the installation, the same at every call.
@lru_cache(maxsize=1_024)
def _load_zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def day_start(zone: tzinfo, now: datetime) -> datetime:
    """Return the moment at which the day of the calendar in the zone began."""
    return datetime.combine(now.astimezone(zone).date(), time(), zone).astimezone(UTC)


def next_moment(clock: time, weekdays: Collection[int], zone: tzinfo, now: datetime) -> datetime:
    """Return the first moment, not before `now`, at which the clock shows this time on one of the weekdays.

    `weekdays`: from 1 (Monday) to 7 (Sunday); empty: every day.
    """
    day = now.astimezone(zone).date()
    while True:
        day = _next_day(day, weekdays)
        moment = datetime.combine(day, clock, zone).astimezone(UTC)
        if moment >= now:
            return moment
        day += timedelta(days=1)


def date_moment(
    value: Json, shift: timedelta, clock: time | None, weekdays: Collection[int], zone: tzinfo
) -> datetime | None:
    """Return the moment that lies `shift` after a date, or before it; None if the value is not a date.

    A date is a text with a day, which begins at midnight in the zone, or with date, time and zone. Whole days of
    `shift` are days of the calendar in the zone. `clock` replaces the time of day, and the first of the `weekdays` that
    is not earlier replaces the day.
    """
    if not isinstance(value, str):
        return None
    try:
        if _DAY.fullmatch(value):
            local = datetime.combine(date.fromisoformat(value), time())
        elif (moment_us := parse_timestamp(value)) is not None:
            local = (_EPOCH + timedelta(microseconds=moment_us)).astimezone(zone)
        else:
            return None
        days, rest = divmod(shift, timedelta(days=1))
        day = _next_day(local.date() + timedelta(days=days), weekdays)
        return datetime.combine(day, local.time() if clock is None else clock, zone).astimezone(UTC) + rest
    except (ValueError, OverflowError):  # February 30; a moment before the year 1 or after the year 9999
        return None


def _next_day(day: date, weekdays: Collection[int]) -> date:
    while weekdays and day.isoweekday() not in weekdays:
        day += timedelta(days=1)
    return day
