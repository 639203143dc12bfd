"""Spans of time as people write them: `"2d"`, `"1h 30m"`, `"3 days"`, `timedelta(days=2)`."""

import re
from datetime import timedelta

from workbench.errors import DraftError

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_ONE = r"(\d+(?:\.\d+)?)\s*(weeks?|w|days?|d|hours?|h|minutes?|min|m|seconds?|s)\s*"
_SPAN = re.compile(rf"\s*(?:{_ONE})+", re.IGNORECASE)
_PART = re.compile(_ONE, re.IGNORECASE)


def seconds_of(span: object, what: str) -> int:
    """Return a span in whole seconds; raise DraftError, naming `what` was meant, when it is none."""
    length = _read(span) if isinstance(span, str) else span
    if not isinstance(length, timedelta) or length < timedelta(seconds=1):
        raise DraftError(f'{what}={span!r} is not a span of time: write "30s", "15m", "2h", "3d", "1w" or "1h 30m"')
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
