"""What the columns of a table mean.

A column is called what it fills: `event`, `contact.email`, `contact.walletAddress`, `contact.externalId`, `attributes.plan`,
`payload.amountUsd`, `payload.address.city`, `idempotencyKey`, `occurredAt`; or, as in our own exports, `email`,
`wallet_address`, `external_id`, `occurred_at`, `idempotency_key`, and `payload` and `attributes` as JSON objects. Any other
column needs to be told: `amount=payload.amountUsd`, `zip=payload.zip:text`, `internal=` (not wanted).

In a text file an empty cell is no value. Under `attributes` and `payload` a cell that is exactly a JSON number, `true` or `false` is
that, everything else is text; `:text`, `:number`, `:boolean`, `:json`, and for moments `:seconds` and `:milliseconds` say it otherwise.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from api.ingest.files.moments import moment
from api.ingest.files.names import Names
from api.ingest.files.row import Record, Row, UnreadableFileError
from api.language.codec import decode, encode
from api.language.problem import Problem

Convert = Callable[[Any], Any]
"""Makes a value of a cell: None for none; raises ValueError with the reason."""

_FIELDS = {
    "event": ("event",),
    "contact.email": ("contact", "email"),
    "contact.walletAddress": ("contact", "walletAddress"),
    "contact.externalId": ("contact", "externalId"),
    "idempotencyKey": ("idempotencyKey",),
    "occurredAt": ("occurredAt",),
    "payload": ("payload",),
    "attributes": ("attributes",),
}
_ALIASES = {
    "email": "contact.email",
    "wallet_address": "contact.walletAddress",
    "external_id": "contact.externalId",
    "occurred_at": "occurredAt",
    "idempotency_key": "idempotencyKey",
}
_OF_OUR_EXPORTS = frozenset(("id", "contact_id", "created_at"))
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TYPES = ("text", "number", "boolean", "json", "seconds", "milliseconds")


_Column = tuple[int, tuple[str, ...], Convert]
"""The index of a column, where its cells go in an event, and how they are read."""


class Columns:
    """The meaning of a table's columns; `typed`: cells have types already, as in parquet, else they are texts."""

    def __init__(
        self, file: str, names: Sequence[str], mapping: Mapping[str, str], events: Names, *, typed: bool
    ) -> None:
        """Raise UnreadableFileError for a column without a meaning, or a table that has no events."""
        self._events = events
        self._columns: list[_Column] = []
        known = _OF_OUR_EXPORTS if {"occurred_at", *_OF_OUR_EXPORTS} <= set(names) else frozenset[str]()
        unknown = []
        for index, name in enumerate(names):
            target = mapping.get(name, _target(name))
            if target is None:
                unknown += [] if name in known else [name]
            elif target:
                path, convert = _meaning(target, typed)
                self._columns.append((index, path, convert))
        self._check(file, names, mapping, unknown)

    def row(self, line: int, cells: Sequence[Any]) -> Row:
        """Return the row of some cells."""
        event: Record = {"contact": {}}
        problems: list[Problem] = []
        for index, path, convert in self._columns:
            cell = cells[index]
            try:
                value = convert(cell)
            except (ValueError, ArithmeticError, RecursionError, OSError) as error:
                problems.append(Problem(".".join(path), str(error)))
                value = str(cell)
            if value is None:
                continue
            if len(path) == 1:
                event[path[0]] = value
            else:
                _put(event, path, value)
        event["event"] = self._events.normal(event.get("event"))
        return line, encode(event), tuple(problems)

    def _check(self, file: str, names: Sequence[str], mapping: Mapping[str, str], unknown: list[str]) -> None:
        if missing := [name for name in mapping if name not in names]:
            raise UnreadableFileError(f"{file}: has no column named {missing[0]}, but {', '.join(names)}")
        if unknown:
            name = unknown[0]
            raise UnreadableFileError(
                f"{file}: nothing is known of column {name!r}"
                + (f" (nor of {', '.join(map(repr, unknown[1:]))})" if unknown[1:] else "")
                + f"; say where it goes, like --map '{name}=payload.{name}', or --map '{name}=' to leave it out"
            )
        paths = [path for _, path, _ in self._columns]
        if ("event",) not in paths:
            raise UnreadableFileError(f"{file}: has no column named event; if one has another name: --map NAME=event")
        for path in paths:
            if clash := [each for each in paths if each[: len(path)] == path][1:]:
                raise UnreadableFileError(f"{file}: two columns go to {'.'.join(path)} ({'.'.join(clash[0])})")


def _target(name: str) -> str | None:
    target = _ALIASES.get(name, name)
    return target if target in _FIELDS or target.startswith(("payload.", "attributes.")) else None


def _meaning(target: str, typed: bool) -> tuple[tuple[str, ...], Convert]:
    """Return where the cells of a column go, and how they are read; raise UnreadableFileError."""
    field, _, kind = target.partition(":")
    field = _ALIASES.get(field, field)
    path = _path(field)
    if path is None or (kind and kind not in _TYPES):
        raise UnreadableFileError(
            f"--map: {target!r} is no field of an event: {', '.join(_FIELDS)}, payload.NAME or attributes.NAME, "
            f"with :{', :'.join(_TYPES)} or nothing behind it"
        )
    if kind:
        return path, _CONVERSIONS[kind]
    if len(path) == 1 and path[0] in ("payload", "attributes"):
        return path, _json
    if path[0] in ("payload", "attributes"):
        return path, _value if typed else _guessed
    return path, _moment if path == ("occurredAt",) else _text


def _path(field: str) -> tuple[str, ...] | None:
    if field in _FIELDS:
        return _FIELDS[field]
    head, _, rest = field.partition(".")
    if not rest or head not in ("payload", "attributes"):
        return None
    return (head, rest) if head == "attributes" else (head, *rest.split("."))


def _put(event: Record, path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        event = event.setdefault(step, {})
    event[path[-1]] = value


def _value(cell: Any) -> Any:
    """Return a typed cell as it is; what JSON has no number for is no value."""
    if isinstance(cell, float | Decimal) and not -1e400 < cell < 1e400:
        return None
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=cell.tzinfo or UTC)
    if isinstance(cell, bytes):
        return cell.decode()
    return cell


def _guessed(cell: str) -> Any:
    if not cell:
        return None
    if cell in ("true", "false"):
        return cell == "true"
    return decode(cell.encode()) if _NUMBER.fullmatch(cell) else cell


def _text(cell: Any) -> Any:
    if cell is None or cell == "" or isinstance(cell, str):
        return cell or None
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _number(cell: Any) -> Any:
    if cell is None or cell == "" or not isinstance(cell, str):
        return _value(cell) if cell != "" else None
    if not _NUMBER.fullmatch(cell):
        raise ValueError("is not a number")
    return decode(cell.encode())


_WORDS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}


def _boolean(cell: Any) -> bool | None:
    if cell is None or cell == "" or isinstance(cell, bool):
        return cell if cell != "" else None
    value = _WORDS.get(str(cell).lower())
    if value is None:
        raise ValueError("is not true or false")
    return value


def _json(cell: Any) -> Any:
    """Return a JSON text to stand inside another; raise ValueError unless it is exactly one JSON value."""
    if cell is None or cell == "":
        return None
    if not isinstance(cell, str | bytes):
        return _value(cell)
    try:
        return msgspec.json.decode(cell, type=msgspec.Raw)
    except ValueError as error:
        raise ValueError(f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}") from None


def _moment(cell: Any) -> Any:
    if cell is None or cell == "":
        return None
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return moment(cell.isoformat())
    return moment(_value(cell))


def _epoch(factor: int) -> Convert:
    def convert(cell: Any) -> Any:
        if cell is None or cell == "":
            return None
        microseconds = int(Decimal(str(cell)) * factor)
        return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)

    return convert


_CONVERSIONS: dict[str, Convert] = {
    "text": _text,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
    "seconds": _epoch(1_000_000),
    "milliseconds": _epoch(1_000),
}
