"""Past events read many at a time, fast enough for an import of a million events.

A batch in which every event is common is decoded into columns, and each column is checked as a whole. Any other batch
is halved, down to eight texts, which `read_past_event` checks one by one. So the columns refuse nothing, and the rules
are only in `read_event`.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Self, cast

import msgspec

from workbench.language.codec import Json
from workbench.language.event import (
    FAST_BODY,
    MAX_EVENT_BYTES,
    MAX_FUTURE,
    Event,
    FastBody,
    Identifiers,
    all_fast_identifiers,
    fast_name,
    none_need_check,
    parse_timestamps,
    read_event,
    to_us,
)
from workbench.language.problem import Problem, Problems

_SMALLEST_BATCH = 8  # texts; a batch of fewer is checked one by one
_MAX_FUTURE_US = to_us(MAX_FUTURE)
_SEPARATOR = b"\x1e"  # a control character, which no JSON text contains unescaped
_NO_ATTRIBUTES: dict[str, Json] = {}


class EventColumns(msgspec.Struct):
    """Valid events in columns of equal length; see `Event` for the fields."""

    names: list[str] = []
    identifiers: list[Identifiers] = []
    attributes: list[dict[str, Json]] = []
    payloads: list[bytes] = []
    idempotency_keys: list[str | None] = []
    occurred_at_us: list[int] = []

    def extend(self, more: Self) -> None:
        """Append the events of `more`."""
        self.names += more.names
        self.identifiers += more.identifiers
        self.attributes += more.attributes
        self.payloads += more.payloads
        self.idempotency_keys += more.idempotency_keys
        self.occurred_at_us += more.occurred_at_us


def read_history(raws: Sequence[bytes], now_us: int) -> tuple[EventColumns, dict[int, Problems]]:
    """Return the valid events among JSON texts, in order, and the problems of the others by position."""
    events, problems = EventColumns(), dict[int, Problems]()
    _read(raws, now_us, events, problems, 0)
    return events, problems


def read_past_event(raw: bytes, now_us: int) -> Event | Problems:
    """Return an event of any age that has a timestamp, or all its problems."""
    event = read_event(raw, now_us, history=True)
    if isinstance(event, tuple):
        return event
    if event.occurred_at_us is None:
        return (Problem("occurredAt", "is required in an import"),)
    return (Problem("test", "a dry run cannot be imported"),) if event.test else event


def _read(raws: Sequence[bytes], now_us: int, events: EventColumns, problems: dict[int, Problems], offset: int) -> None:
    """Append the valid events to `events`, and the others' problems to `problems`; `offset` is the first position."""
    if not raws:
        return
    columns = _read_columns(raws, now_us)
    if columns is not None:
        events.extend(columns)
    elif len(raws) > _SMALLEST_BATCH:
        half = len(raws) // 2
        _read(raws[:half], now_us, events, problems, offset)
        _read(raws[half:], now_us, events, problems, offset + half)
    else:
        for position, raw in enumerate(raws, offset):
            event = read_past_event(raw, now_us)
            if not isinstance(event, Event):
                problems[position] = event
                continue
            events.names.append(event.name)
            events.identifiers.append(event.identifiers)
            events.attributes.append(event.attributes)
            events.payloads.append(event.payload)
            events.idempotency_keys.append(event.idempotency_key)
            events.occurred_at_us.append(event.occurred_at_us or 0)


def _read_columns(raws: Sequence[bytes], now_us: int) -> EventColumns | None:
    """Return the events of the texts, or None if one of them needs the full path."""
    bodies = _decode_lines(raws)
    if bodies is None or True in [body.test for body in bodies]:
        return None
    timestamps = parse_timestamps([body.occurred_at for body in bodies])
    occurred_at_us = [timestamp_us for timestamp_us in timestamps if timestamp_us is not None]
    if len(occurred_at_us) < len(bodies) or max(occurred_at_us) > now_us + _MAX_FUTURE_US:
        return None
    identifiers = all_fast_identifiers([bytes(body.contact) for body in bodies])
    names = {name: fast_name(name) for name in {body.event for body in bodies}}
    if identifiers is None or None in names.values():
        return None
    payloads = [bytes(body.payload) for body in bodies]
    if b"null" in payloads:
        payloads = [b"{}" if payload == b"null" else payload for payload in payloads]
    objects = (_SEPARATOR + _SEPARATOR.join(payloads)).count(_SEPARATOR + b"{")
    if objects < len(payloads) or not none_need_check(payloads):
        return None
    return EventColumns(
        [names[body.event] or "" for body in bodies],
        identifiers,
        cast("list[dict[str, Json]]", [body.attributes or _NO_ATTRIBUTES for body in bodies]),
        payloads,
        [body.idempotency_key for body in bodies],
        occurred_at_us,
    )


def _decode_lines(raws: Sequence[bytes]) -> list[FastBody] | None:
    """Return the decoded texts, or None unless all are ASCII without escapes, in braces and of the common types."""
    lines, breaks = b"\n".join(raws), len(raws) - 1
    if (
        lines.startswith(b"{")
        and lines.endswith(b"}")
        # Each line is then one text: inside a text, no `}` ends a line before one that starts with `{`.
        and lines.count(b"\n") == lines.count(b"}\n{") == breaks
        and lines.isascii()
        and b"\\" not in lines
        and max(map(len, raws)) <= MAX_EVENT_BYTES
    ):
        with suppress(ValueError, RecursionError):
            bodies = FAST_BODY.decode_lines(lines)
            return bodies if len(bodies) == len(raws) else None
    return None
