"""Cron expressions in a time zone: `0 9 * * mon` is every Monday at 09:00.

Five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday). Each is `*`, or a list of
numbers, names and ranges, with optional steps: `*/15`, `1-5`, `mon,fri`. If both days are restricted, either suffices;
a day is restricted unless it begins with `*`, as in cron: `0 9 */2 * mon` is every Monday that is an odd day.

When the clock is set forward, a time that it skips is later by as much. When it is set back, a time that it passes
twice counts once, unless the hour is `*`.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

import msgspec

MAX_CRON = 200  # characters
_HORIZON = timedelta(days=366 * 8)  # 29 February is at most eight years away
_ANY_MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
_FIELDS = (
    ("minute", 0, 59, ""),
    ("hour", 0, 23, ""),
    ("day of the month", 1, 31, ""),
    ("month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    ("day of the week", 0, 7, "sun mon tue wed thu fri sat"),
)
_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", re.ASCII)


class Cron(msgspec.Struct, frozen=True):
    """The minutes, hours, days, months and weekdays (0: Sunday) of an expression, and its time zone.

    `is_either`: both days are restricted, and either suffices.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    zone: tzinfo
    is_either: bool

    def times_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after a moment, in order, until none follows within eight years."""
        # A time that the clock skipped yesterday may be today.
        day, last = moment.astimezone(self.zone).date() - timedelta(days=1), moment
        while datetime(day.year, day.month, day.day, tzinfo=UTC) < last + _HORIZON:
            for time in self._times_on(day):
                if time > last:
                    last = time
                    yield time
            day += timedelta(days=1)

    def _times_on(self, day: date) -> list[datetime]:
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if day.month not in self.months or not (by_date or by_weekday if self.is_either else by_date and by_weekday):
            return []
        local = [
            datetime(*day.timetuple()[:3], hour, minute, tzinfo=self.zone)
            for hour in self.hours
            for minute in self.minutes
        ]
        times = {time.astimezone(UTC) for time in local}
        if len(self.hours) == 24:  # of a time that the clock skips, fold=1 is earlier
            times |= {later for time in local if (later := time.replace(fold=1).astimezone(UTC)) > time.astimezone(UTC)}
        return sorted(times)


def read_cron(expression: str, zone: tzinfo) -> Cron | str:
    """Return a cron expression in a time zone, or what is wrong with it."""
    fields = expression.lower().split()
    if len(fields) != len(_FIELDS) or len(expression) > MAX_CRON:
        return f"must have five fields ({', '.join(name for name, *_ in _FIELDS)}), like 0 9 * * mon"
    numbers: list[frozenset[int]] = []
    for field, (name, least, most, names) in zip(fields, _FIELDS, strict=True):
        values = _read_field(field, least, most, names)
        if values is None:
            hint = f"write * or numbers from {least} to {most}, like 1,15 or 1-5 or */2"
            return f"{field!r} is not valid as the {name}: {hint}"
        numbers.append(values)
    minutes, hours, days, months, weekdays = numbers
    is_either = not fields[2].startswith("*") and not fields[4].startswith("*")
    cron = Cron(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), zone, is_either)
    return cron if next(cron.times_after(_ANY_MOMENT), None) is not None else "never fires: no month has such a day"


def _read_field(field: str, least: int, most: int, names: str) -> frozenset[int] | None:
    for number, name in enumerate(names.split(), least):
        field = re.sub(rf"\b{name}\b", str(number), field)
    values: set[int] = set()
    for part in field.split(","):
        if (match := _PART.fullmatch(part)) is None:
            return None
        first, last, step = match.groups()
        begin = least if first is None else int(first)
        end = int(last) if last is not None else most if first is None or step is not None else begin
        if not least <= begin <= end <= most or (step is not None and int(step) < 1):
            return None
        values.update(range(begin, end + 1, int(step or 1)))
    return frozenset(values)
