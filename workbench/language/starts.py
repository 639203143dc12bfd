"""Starts, other than events and logs, of an automation: a contact enters or leaves a segment, or gets a broadcast.

A schedule repeats a broadcast. A start becomes an event of its contact: its name is the type of the trigger, its
payload names the segment.
"""

from collections.abc import Mapping
from datetime import UTC
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from workbench.language.body import SLUG
from workbench.language.codec import Json, encode
from workbench.language.cron import Cron, read_cron
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.local_time import find_zone, time_zone
from workbench.language.problem import Problem, Problems, problems_in

StartType: TypeAlias = Literal["segment_entered", "segment_left", "broadcast", "schedule"]
SegmentChange: TypeAlias = Literal["segment_entered", "segment_left"]
SEGMENT_CHANGES: tuple[SegmentChange, ...] = get_args(SegmentChange)
START_TYPES: tuple[StartType, ...] = get_args(StartType)
Missed: TypeAlias = Literal["once", "skip"]
MISSED: tuple[Missed, ...] = get_args(Missed)


class StartSource(msgspec.Struct, frozen=True):
    """The starts of one type. `segment`: its contacts; a broadcast names it when it is sent, a schedule may name none.

    `cron`, `timezone`: the times of a schedule. `missed`: whether a run that was missed is made late, once, or skipped.
    """

    type: StartType
    segment: str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    missed: Missed = "once"

    @property
    def key(self) -> str:
        """A text that is the same for all starts of this source, and differs from that of other sources."""
        match self.type:
            case "broadcast":
                return self.type
            case "schedule":
                return f"{self.type}:{self.cron}:{self.timezone}:{self.segment or ''}"
            case _:
                return f"{self.type}:{self.segment}"

    @property
    def name(self) -> str:
        return self.type

    def times(self) -> Cron | str:
        """Return the times of a schedule, or what is wrong with them."""
        return read_cron(self.cron or "", time_zone(self.timezone))

    @property
    def payload(self) -> dict[str, Json]:
        """The payload of a start; that of a broadcast to a segment names it."""
        return {} if self.segment is None else {"segment": self.segment}

    @property
    def shown_values(self) -> dict[str, Json]:
        """The values of the trigger spec as titles show them."""
        schedule = {"cron": self.cron, "timezone": self.timezone, "missed": self.missed}
        return {"segment": self.segment, **(schedule if self.type == "schedule" else {})}


START_SOURCE_SCHEMA: Mapping[str, Mapping[str, Json]] = {  # the fields that `read_start_source` reads
    "segment": {"type": ["string", "null"], "pattern": f"^{SLUG.pattern}$"},
    "cron": {"type": "string", "examples": ["0 9 * * mon"]},
    "timezone": {"type": "string", "examples": ["Europe/Zurich"], "default": "UTC"},
    "missed": {"enum": [*MISSED], "default": "once"},
}


def read_start_source(
    type_name: StartType, spec: Mapping[str, Any], field: str, problems: list[Problem]
) -> StartSource | None:
    """Return the source in the trigger spec of an automation; add what is wrong with it to `problems`."""
    before, segment = len(problems), spec.get("segment")
    if type_name not in SEGMENT_CHANGES:
        names = ("segment", "filters", "where") if type_name == "broadcast" else ("filters", "where")
        reason = f"does not belong to a {type_name}: its contacts are those of a segment"
        problems += [Problem(f"{field}.{name}", reason) for name in names if spec.get(name)]
    if type_name == "broadcast":
        return StartSource(type_name)
    is_optional = segment is None and type_name == "schedule"
    if not is_optional and not (isinstance(segment, str) and SLUG.fullmatch(segment)):
        problems.append(Problem(f"{field}.segment", "must be the name of a segment, like vip"))
    if type_name != "schedule":
        return StartSource(type_name, segment) if len(problems) == before else None
    cron, timezone, missed = spec.get("cron"), spec.get("timezone", "UTC"), spec.get("missed", "once")
    if find_zone(timezone) is None:
        problems.append(Problem(f"{field}.timezone", "must be a time zone, like Europe/Zurich"))
    times = read_cron(cron if isinstance(cron, str) else "", UTC)
    if isinstance(times, str):
        problems.append(Problem(f"{field}.cron", times))
    if missed not in MISSED:
        problems.append(Problem(f"{field}.missed", "must be once or skip"))
    return StartSource(type_name, segment, cron, timezone, missed) if len(problems) == before else None


def read_start_sample(value: Mapping[str, Any], source: StartSource) -> Event | Problems:
    """Return the event of a described start, `{"type": "segment_entered", "contact": {…}}`, or its problems."""
    identifiers = Identifiers()
    payload = source.payload
    if source.segment is None and isinstance(value.get("segment"), str):
        payload = {"segment": value["segment"]}
    if value.get("contact") is not None:
        event = read_event(encode({"event": source.type, "contact": value["contact"]}), 0)
        if isinstance(event, tuple):
            return problems_in("event", event)
        identifiers = event.identifiers
    return Event(source.type, identifiers, payload=encode(payload), source=source.key)
