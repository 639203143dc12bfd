"""What holds for an automation as a whole: `graph.settings`, beside nodes and edges, pinned with the version.

`reentry` {policy: always | once | once_per | not_while_running, days?}: whether a contact that was here before enters again.
`goal` {event, filters?}: the event that ends an entry early, as `exited` with outcome `goal`.
`quietHours` {from, to, timezoneAttribute?}: when no in-app message or email goes out, on the contact's clock.
`frequencyCap` {messages, seconds}: how many of them a contact gets in a period, whichever automation sends them.
`holdout` (whole percentage): how many contacts of a hundred get nothing, so that the others can be compared with them.
Webhooks speak to systems, not to people: neither quiet hours nor the cap holds them.
"""

import re
from collections.abc import Callable
from datetime import time, timedelta
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from api.language.action import MAX_WAIT, read_event_name
from api.language.filter import Filter
from api.language.problem import Problem, Problems
from api.language.trigger import read_filters

MAX_DAYS = 3_650
MAX_CAP = 1_000
MAX_HOLDOUT = 50  # percent
TIMEZONE = "timezone"

Policy: TypeAlias = Literal["always", "once", "once_per", "not_while_running"]
_Reader: TypeAlias = Callable[[Any, str, list[Problem]], Any]
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


class Reentry(msgspec.Struct, frozen=True):
    """Whether a contact enters again. `days`: of `once_per`, each of 24 hours."""

    policy: Policy = "always"
    days: int = 0


class Goal(msgspec.Struct, frozen=True):
    """The event after which an entry has nothing left to do."""

    event: str
    filters: tuple[Filter, ...] = ()


class QuietHours(msgspec.Struct, frozen=True):
    """From `start` until before `end`, over midnight if need be, in the zone named by an attribute of the contact."""

    start: time
    end: time
    attribute: str = TIMEZONE


class FrequencyCap(msgspec.Struct, frozen=True):
    """At most so many messages to a contact in any period of this length."""

    messages: int
    period: timedelta


class Settings(msgspec.Struct, frozen=True):
    """The settings of an automation. `problems`: what is wrong with those that are missing here; published ones have none."""

    reentry: Reentry = Reentry()
    goal: Goal | None = None
    quiet_hours: QuietHours | None = None
    frequency_cap: FrequencyCap | None = None
    holdout: int = 0
    problems: Problems = ()


NO_SETTINGS = Settings()


def read_settings(value: Any, field: str) -> Settings:
    """Return the settings in a decoded JSON value; what cannot be read is among their problems. Never raises."""
    if value is None:
        return NO_SETTINGS
    if not isinstance(value, dict):
        return Settings(problems=(Problem(field, "must be an object"),))
    problems: list[Problem] = []
    found: dict[str, Any] = {}
    for name, written in value.items():
        if name not in _READERS:
            reason = f"there is no such setting; there are {', '.join(_READERS)}"
            problems.append(Problem(f"{field}.{name}", reason))
        elif written is not None:
            attribute, read = _READERS[name]
            found[attribute] = _read(read, written, f"{field}.{name}", problems)
    kept = {name: setting for name, setting in found.items() if setting is not None}
    return Settings(**kept, problems=tuple(problems))


def _read(read: _Reader, value: Any, field: str, problems: list[Problem]) -> Any:
    """Return a setting, None when anything is wrong with it."""
    before = len(problems)
    setting = read(value, field, problems)
    return setting if len(problems) == before else None


def _of_object(read: Callable[[dict[str, Any], str, list[Problem]], Any]) -> _Reader:
    """Return the reader of a setting that is written as an object."""

    def reader(value: Any, field: str, problems: list[Problem]) -> Any:
        if isinstance(value, dict):
            return read(value, field, problems)
        problems.append(Problem(field, "must be an object"))
        return None

    return reader


def _holdout(value: Any, field: str, problems: list[Problem]) -> int:
    if type(value) is int and 1 <= value <= MAX_HOLDOUT:
        return value
    problems.append(Problem(field, f"must be a whole percentage from 1 to {MAX_HOLDOUT}"))
    return 0


def _reentry(value: dict[str, Any], field: str, problems: list[Problem]) -> Reentry:
    policy = next((each for each in get_args(Policy) if each == value.get("policy")), None)
    if policy is None:
        problems.append(Problem(f"{field}.policy", f"must be one of {', '.join(get_args(Policy))}"))
        return Reentry()
    days = _whole(value, field, "days", MAX_DAYS, problems) if policy == "once_per" else 0
    return Reentry(policy, days)


def _goal(value: dict[str, Any], field: str, problems: list[Problem]) -> Goal:
    event = read_event_name(value.get("event"), f"{field}.event", problems)
    return Goal(event, read_filters(value.get("filters"), f"{field}.filters", problems))


def _quiet_hours(value: dict[str, Any], field: str, problems: list[Problem]) -> QuietHours:
    start, end = (_clock(value, field, name, problems) for name in ("from", "to"))
    if start == end and start is not None:
        problems.append(Problem(f"{field}.to", "must differ from `from`: there would be no hour that is not quiet"))
    named = value.get("timezoneAttribute")
    attribute = TIMEZONE if named is None else named
    if not isinstance(attribute, str) or not attribute:
        problems.append(Problem(f"{field}.timezoneAttribute", "must be the name of an attribute of the contact"))
    return QuietHours(start or time(), end or time(), attribute)


def _frequency_cap(value: dict[str, Any], field: str, problems: list[Problem]) -> FrequencyCap:
    messages = _whole(value, field, "messages", MAX_CAP, problems)
    seconds = _whole(value, field, "seconds", MAX_WAIT // timedelta(seconds=1), problems)
    return FrequencyCap(messages, timedelta(seconds=seconds))


def _clock(value: dict[str, Any], field: str, name: str, problems: list[Problem]) -> time | None:
    written = value.get(name)
    if isinstance(written, str) and _CLOCK.fullmatch(written):
        return time.fromisoformat(written)
    problems.append(Problem(f"{field}.{name}", "must be a time of day from 00:00 to 23:59, like 22:00"))
    return None


def _whole(value: dict[str, Any], field: str, name: str, most: int, problems: list[Problem]) -> int:
    number = value.get(name)
    if type(number) is int and 1 <= number <= most:
        return number
    problems.append(Problem(f"{field}.{name}", f"must be a whole number from 1 to {most:,}"))
    return 1


_READERS: dict[str, tuple[str, _Reader]] = {
    "reentry": ("reentry", _of_object(_reentry)),
    "goal": ("goal", _of_object(_goal)),
    "quietHours": ("quiet_hours", _of_object(_quiet_hours)),
    "frequencyCap": ("frequency_cap", _of_object(_frequency_cap)),
    "holdout": ("holdout", _holdout),
}
