"""What starts an automation other than events and logs: a contact that enters or leaves a segment.

A start becomes an event of its contact: its name is the type of the trigger, its payload names the segment.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from workbench.language.codec import Json, encode
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.problem import Problem, Problems, problems_in

StartType: TypeAlias = Literal["segment_entered", "segment_left"]
START_TYPES: tuple[StartType, ...] = get_args(StartType)
SEGMENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


class StartSource(msgspec.Struct, frozen=True):
    """The starts of one type, for the contacts of a segment."""

    type: StartType
    segment: str

    @property
    def key(self) -> str:
        """Type and segment as one text."""
        return f"{self.type}:{self.segment}"

    @property
    def name(self) -> str:
        return self.type

    @property
    def payload(self) -> dict[str, Json]:
        """The payload of a start."""
        return {"segment": self.segment}

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
    if not isinstance(segment, str) or not SEGMENT_NAME.fullmatch(segment):
        problems.append(Problem(f"{field}.segment", "must be the name of a segment, like vip"))
        return None
    return StartSource(type_name, segment)


def read_start_sample(value: Mapping[str, Any], source: StartSource, now_us: int) -> Event | Problems:
    """Return the event of a described start, `{"type": "segment_entered", "contact": {…}}`, or its problems."""
    identifiers = Identifiers()
    if value.get("contact") is not None:
        event = read_event(encode({"event": source.type, "contact": value["contact"]}), now_us)
        if isinstance(event, tuple):
            return problems_in("event", event)
        identifiers = event.identifiers
    return Event(source.type, identifiers, payload=encode(source.payload), source=source.key)
