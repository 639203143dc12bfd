"""What starts an automation other than events and logs: a contact enters or leaves a segment, or gets a broadcast.

A start becomes an event of its contact: its name is the type of the trigger, its payload names the segment.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from workbench.language.codec import Json, encode
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.problem import Problem, Problems, problems_in

StartType: TypeAlias = Literal["segment_entered", "segment_left", "broadcast"]
SegmentChange: TypeAlias = Literal["segment_entered", "segment_left"]
SEGMENT_CHANGES: tuple[SegmentChange, ...] = get_args(SegmentChange)
START_TYPES: tuple[StartType, ...] = get_args(StartType)
SEGMENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


class StartSource(msgspec.Struct, frozen=True):
    """The starts of one type. `segment`: of changes of a segment; a broadcast names its segment when it is sent."""

    type: StartType
    segment: str | None = None

    @property
    def key(self) -> str:
        """Type and segment as one text."""
        return self.type if self.segment is None else f"{self.type}:{self.segment}"

    @property
    def name(self) -> str:
        return self.type

    @property
    def payload(self) -> dict[str, Json]:
        """The payload of a start; that of a broadcast to a segment names it."""
        return {} if self.segment is None else {"segment": self.segment}

    @property
    def shown_values(self) -> dict[str, Json]:
        """The values of the trigger spec as titles show them."""
        return {"segment": self.segment}


START_SOURCE_SCHEMA: Mapping[str, Mapping[str, Json]] = {  # the fields that `read_start_source` reads
    "segment": {"type": "string", "pattern": f"^{SEGMENT_NAME.pattern}$"}
}


def read_start_source(
    type_name: StartType, spec: Mapping[str, Any], field: str, problems: list[Problem]
) -> StartSource | None:
    """Return the source in the trigger spec of an automation; add what is wrong with it to `problems`."""
    segment = spec.get("segment")
    if type_name == "broadcast":
        reason = "does not belong to a broadcast: its segment is chosen when it is sent"
        problems += [Problem(f"{field}.{name}", reason) for name in ("segment", "filters", "where") if spec.get(name)]
        return StartSource(type_name)
    if not isinstance(segment, str) or not SEGMENT_NAME.fullmatch(segment):
        problems.append(Problem(f"{field}.segment", "must be the name of a segment, like vip"))
        return None
    return StartSource(type_name, segment)


def read_start_sample(value: Mapping[str, Any], source: StartSource, now_us: int) -> Event | Problems:
    """Return the event of a described start, `{"type": "segment_entered", "contact": {…}}`, or its problems."""
    identifiers = Identifiers()
    payload = source.payload
    if source.segment is None and isinstance(value.get("segment"), str):
        payload = {"segment": value["segment"]}
    if value.get("contact") is not None:
        event = read_event(encode({"event": source.type, "contact": value["contact"]}), now_us)
        if isinstance(event, tuple):
            return problems_in("event", event)
        identifiers = event.identifiers
    return Event(source.type, identifiers, payload=encode(payload), source=source.key)
