"""Events of history, judged many at a time: `read_event` is the judge, at a price that a million events can pay.

A stretch of texts in which everything is usual is read as columns, each checked as a whole. A stretch with anything unusual in it is
halved, down to a few texts, which are judged one by one. So the columns refuse nothing, and there is one judge.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Self, cast

import msgspec

from api.language.codec import Json
from api.language.event import (
    MAX_EVENT_TEXT,
    NEWEST,
    USUAL,
    Event,
    Identifiers,
    UsualBody,
    all_usual_identifiers,
    read_event,
    usual_name,
)
from api.language.moment import in_us, read_moments
from api.language.payload import all_sound
from api.language.problem import Problem, Problems

_FEW = 8  # texts that are judged one by one
_NEWEST_US = in_us(NEWEST)
_BETWEEN = b"\x1e"  # stands in no JSON text
_NO_ATTRIBUTES: dict[str, Json] = {}


class History(msgspec.Struct):
    """Valid events in columns, see `Event` for each."""

    names: list[str] = []
    identifiers: list[Identifiers] = []
    attributes: list[dict[str, Json]] = []
    payloads: list[bytes] = []
    idempotency_keys: list[str | None] = []
    ats_us: list[int] = []

    def extend(self, more: Self) -> None:
        """Add events behind these."""
        self.names += more.names
        self.identifiers += more.identifiers
        self.attributes += more.attributes
        self.payloads += more.payloads
        self.idempotency_keys += more.idempotency_keys
        self.ats_us += more.ats_us


def read_history(raws: Sequence[bytes], now_us: int) -> tuple[History, dict[int, Problems]]:
    """Return the valid events among JSON texts, in their order, judged at `now_us`, and what is wrong with the others, by position."""
    found, problems = History(), dict[int, Problems]()
    _judge(raws, now_us, found, problems, 0)
    return found, problems


def read_past_event(raw: bytes, now_us: int) -> Event | Problems:
    """Return an event of any age that says when it occurred, or all that is wrong with it."""
    event = read_event(raw, now_us, history=True)
    if isinstance(event, tuple):
        return event
    if event.occurred_at_us is None:
        return (Problem("occurredAt", "is required in an import"),)
    return (Problem("test", "a dry run is not history"),) if event.test else event


def _judge(raws: Sequence[bytes], now_us: int, found: History, problems: dict[int, Problems], first: int) -> None:
    """Add the events among texts to `found`, and the problems of the others, the first of which has the position `first`."""
    if not raws:
        return
    usual = _read_usual(raws, now_us)
    if usual is not None:
        found.extend(usual)
    elif len(raws) > _FEW:
        half = len(raws) // 2
        _judge(raws[:half], now_us, found, problems, first)
        _judge(raws[half:], now_us, found, problems, first + half)
    else:
        for position, raw in enumerate(raws, first):
            event = read_past_event(raw, now_us)
            if isinstance(event, Event):
                found.extend(_alone(event))
            else:
                problems[position] = event


def _alone(event: Event) -> History:
    return History(
        [event.name],
        [event.identifiers],
        [event.attributes],
        [event.payload],
        [event.idempotency_key],
        [event.occurred_at_us or 0],
    )


def _read_usual(raws: Sequence[bytes], now_us: int) -> History | None:
    """Return the events of texts, or None if one of them needs a judge."""
    bodies = _bodies(raws)
    if bodies is None or True in [body.test for body in bodies]:
        return None
    ats_us = _moments(bodies, now_us)
    identifiers = all_usual_identifiers([bytes(body.contact) for body in bodies])
    payloads = _payloads(bodies)
    names = {name: usual_name(name) for name in {body.event for body in bodies}}
    if ats_us is None or identifiers is None or payloads is None or None in names.values():
        return None
    return History(
        [names[body.event] or "" for body in bodies],
        identifiers,
        cast("list[dict[str, Json]]", [body.attributes or _NO_ATTRIBUTES for body in bodies]),
        payloads,
        [body.idempotency_key for body in bodies],
        ats_us,
    )


def _bodies(raws: Sequence[bytes]) -> list[UsualBody] | None:
    """Return what is in texts that are lines of ASCII without escapes, each from brace to brace.

    Such a line is one text: inside of one, no brace closes before a line break and another one opens behind it.
    """
    lines, breaks = b"\n".join(raws), len(raws) - 1
    if (
        lines.startswith(b"{")
        and lines.endswith(b"}")
        and lines.count(b"\n") == lines.count(b"}\n{") == breaks
        and lines.isascii()
        and b"\\" not in lines
        and max(map(len, raws)) <= MAX_EVENT_TEXT
    ):
        with suppress(ValueError, RecursionError):
            bodies = USUAL.decode_lines(lines)
            return bodies if len(bodies) == len(raws) else None
    return None


def _moments(bodies: Sequence[UsualBody], now_us: int) -> list[int] | None:
    ats_us = [at_us for at_us in read_moments([body.occurred_at for body in bodies]) if at_us is not None]
    return ats_us if len(ats_us) == len(bodies) and max(ats_us) <= now_us + _NEWEST_US else None


def _payloads(bodies: Sequence[UsualBody]) -> list[bytes] | None:
    payloads = [bytes(body.payload) for body in bodies]
    if b"null" in payloads:
        payloads = [b"{}" if payload == b"null" else payload for payload in payloads]
    objects = (_BETWEEN + _BETWEEN.join(payloads)).count(_BETWEEN + b"{")
    return payloads if objects == len(payloads) and all_sound(payloads) else None
