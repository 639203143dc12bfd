"""Quiet hours on the contact's clock.

The time zone database is the one thing that the language reads from disk: data of the installation, the same at every call.
"""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from api.language.codec import Json
from api.language.settings import QuietHours

_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_DAY = timedelta(days=1)


def quiet_until(hours: QuietHours, zone_name: Json, now: datetime) -> datetime | None:
    """Return when the quiet hours around `now` end, in UTC; None when it is not quiet.

    `zone_name` is what the contact has for a time zone, such as `Europe/Zurich`; anything that is not one means UTC.
    """
    local = now.astimezone(zone_of(zone_name))
    if not _is_quiet(hours, local.time()):
        return None
    day = local.date() + _DAY if hours.start > hours.end and local.time() >= hours.start else local.date()
    end = datetime.combine(day, hours.end, local.tzinfo)
    if end.astimezone(UTC) <= now:  # the hour that comes twice when clocks are set back: its second time
        end = end.replace(fold=1)
    return end.astimezone(UTC)


def zone_of(name: Json) -> tzinfo:
    """Return the time zone of that name, UTC when there is none."""
    return _zone(name) if isinstance(name, str) and len(name) <= 64 and _ZONE.fullmatch(name) else UTC


def _is_quiet(hours: QuietHours, clock: time) -> bool:
    if hours.start < hours.end:
        return hours.start <= clock < hours.end
    return clock >= hours.start or clock < hours.end


@lru_cache(maxsize=1_024)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
