"""What may be kept of an event that was refused: its keys, and of its values only their JSON types.

Name, idempotency key, `occurredAt` and `test` stay readable: a developer finds the event by them. Whatever stays readable
loses its email addresses and is cut, because nothing says that a refused event has its values in the right places.
"""

import re
from typing import TypeAlias

import msgspec

from api.language.codec import Json, MalformedJsonError, cut_depth, decode, encode, mend_surrogates

MOST_BYTES = 2_048  # of a body, in the form in which Postgres writes it

_MOST_CHARACTERS = 128
_BLANKS = re.compile(r"(\s+)")
_READABLE = frozenset({"event", "idempotencyKey", "occurredAt", "test"})
_SHOWN_OF_ARRAY = 3
_REST = "…"
_CONTAINER = len('{"...": "1234567 more"}, ')
_MEMBER = len(': "boolean", ')

Shape: TypeAlias = "dict[str, Shape] | list[Shape] | str | bool"


class Excerpt(msgspec.Struct, frozen=True):
    """What is kept of a body, all of it None when it is no JSON. `body` is JSON text."""

    event: str | None = None
    idempotency_key: str | None = None
    body: str | None = None


def excerpt(raw: bytes) -> Excerpt:
    """Return what may be kept of the JSON text of an event."""
    try:
        value = _decoded(raw)
    except MalformedJsonError:
        return Excerpt()
    room = _Room(MOST_BYTES - _CONTAINER)
    if not isinstance(value, dict):
        return Excerpt(body=encode(_shape(value, room)).decode())
    body = encode(_object(value, room, _READABLE)).decode()
    return Excerpt(_text(value.get("event")), _text(value.get("idempotencyKey")), body)


def readable(text: str) -> str:
    """Return a text without words that hold an `@`, without U+0000, and only the beginning of a long one."""
    clean = text.replace("\0", "\ufffd")
    if "@" in clean:
        clean = "".join("•••" if "@" in word else word for word in _BLANKS.split(clean))
    return clean if len(clean) <= _MOST_CHARACTERS else clean[:_MOST_CHARACTERS] + _REST


class _Room:
    """How many bytes the body may still grow by."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, size: int) -> bool:
        """Take room; return False when there is not enough."""
        if size > self._left:
            return False
        self._left -= size
        return True


def _decoded(raw: bytes) -> Json:
    mended = mend_surrogates(raw)
    try:
        return decode(mended)  # type: ignore[no-any-return]
    except MalformedJsonError:
        return decode(cut_depth(mended))  # type: ignore[no-any-return]


def _text(value: Json) -> str | None:
    return readable(value) if isinstance(value, str) else None


def _shape(value: Json, room: _Room) -> Shape:
    """Return the value with its scalars replaced by their types, and what there is no room for left out."""
    match value:
        case dict():
            return _object(value, room) if room.take(_CONTAINER) else "object"
        case list():
            return _array(value, room) if room.take(_CONTAINER) else "array"
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case _:
            return "number"


def _object(members: dict[str, Json], room: _Room, keep: frozenset[str] = frozenset()) -> Shape:
    shown: dict[str, Shape] = {}
    for position, (key, value) in enumerate(members.items()):
        name = readable(key)
        if not room.take(_size(name) + _MEMBER):
            shown[_REST] = f"{len(members) - position} more"
            break
        shown[name] = _kept(value, room) if key in keep else _shape(value, room)
    return shown


def _array(elements: list[Json], room: _Room) -> Shape:
    shown: list[Shape] = []
    for position, value in enumerate(elements):
        if position == _SHOWN_OF_ARRAY or not room.take(_MEMBER):
            shown.append(f"{len(elements) - position} more")
            break
        shown.append(_shape(value, room))
    return shown


def _kept(value: Json, room: _Room) -> Shape:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and room.take(_size(text := readable(value))):
        return text
    return _shape(value, room)


def _size(text: str) -> int:
    return len(encode(text))
