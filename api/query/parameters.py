"""Bind the caller's values: a list to `$1…`, an object to `:name`.

Strings and null are sent without a type, so Postgres infers it from where they stand (`created_at > :since` takes an RFC
3339 string). Booleans, numbers and objects (jsonb) are sent with theirs; a list becomes an array of its elements' type.

Email addresses are stored sealed, so a value that is, as a whole, a valid address is sealed too: `where email = :address`
finds the contact. An address written into the statement itself stays clear text, for comparing with a payload.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from api.language.codec import Json, encode, unfit
from api.language.email import normal_email
from api.language.problem import Problem
from api.language.sql import tokens
from api.store.reading import Parameter

MOST_PARAMETERS = 1000

_INFERRED, _BOOL, _INT4, _INT8, _NUMERIC, _JSONB = 0, 16, 23, 20, 1700, 3802
_ARRAY_OF = {_BOOL: 1000, _INT4: 1007, _INT8: 1016, _NUMERIC: 1231, _JSONB: 3807, _INFERRED: _INFERRED}

Seal = Callable[[str], str]


class Bound(msgspec.Struct, frozen=True):
    """A statement with `$n` only, its values, and how to speak of both in the caller's words."""

    statement: str
    parameters: list[Parameter]
    names: list[str]
    moves: list[tuple[int, int]]

    def original_position(self, position: int) -> int:
        """Return where a character (counted from 1) stands in the text as it was given."""
        new, old = max((move for move in self.moves if move[0] <= position - 1), default=(0, 0))
        return position - new + old

    def original_words(self, message: str) -> str:
        """Return a message of Postgres with the caller's parameter names."""
        for number in range(len(self.names), 0, -1):
            message = message.replace(f"parameter ${number}", f"parameter {self.names[number - 1]}")
        return message


def bind(text: str, params: object, seal: Seal) -> Bound | Problem:
    """Return the statement to send, or what is wrong with the parameters."""
    match params:
        case list() if len(params) <= MOST_PARAMETERS:
            return _bind_list(text, params, seal)
        case dict() if len(params) <= MOST_PARAMETERS:
            return _bind_names(text, params, seal)
        case None:
            return _bind_names(text, {}, seal)
        case list() | dict():
            return Problem("params", f"at most {MOST_PARAMETERS} parameters are allowed")
        case _:
            return Problem("params", "must be a list for $1, $2, … or an object for :name")


def _bind_list(text: str, params: list[Json], seal: Seal) -> Bound | Problem:
    used = {int(token.text[1:]) for token in tokens(text) if token.kind == "positional"}
    if missing := sorted(number for number in used if not 1 <= number <= len(params)):
        return Problem("params", f"${missing[0]} has no value, {len(params)} given")
    if unused := sorted(set(range(1, len(params) + 1)) - used):
        return Problem(f"params[{unused[0] - 1}]", f"is not used: the statement has no ${unused[0]}")
    values = _parameters({f"params[{index}]": value for index, value in enumerate(params)}, seal)
    names = [f"${number}" for number in range(1, len(params) + 1)]
    return values if isinstance(values, Problem) else Bound(text, values, names, [])


def _bind_names(text: str, params: dict[str, Json], seal: Seal) -> Bound | Problem:
    numbers: dict[str, int] = {}
    pieces: list[str] = []
    moves: list[tuple[int, int]] = []
    done = length = 0
    for token in tokens(text):
        if token.kind == "positional":
            return Problem("params", f"{token.text} takes its value from a list; with an object write :name")
        if token.kind != "name":
            continue
        number = numbers.setdefault(token.text[1:], len(numbers) + 1)
        piece = text[done : token.start] + f"${number}"
        pieces.append(piece)
        length += len(piece)
        done = token.start + len(token.text)
        moves.append((length, done))
    if missing := [name for name in numbers if name not in params]:
        return Problem(f"params.{missing[0]}", f"is missing: the statement uses :{missing[0]}")
    if unused := [name for name in params if name not in numbers]:
        return Problem(f"params.{unused[0]}", f"is not used: the statement has no :{unused[0]}")
    values = _parameters({f"params.{name}": params[name] for name in numbers}, seal)
    if isinstance(values, Problem):
        return values
    return Bound("".join([*pieces, text[done:]]), values, [f":{name}" for name in numbers], moves)


def _parameters(values: dict[str, Json], seal: Seal) -> list[Parameter] | Problem:
    """Return the values by field name as Postgres takes them, in order."""
    for field, value in values.items():
        if reason := unfit(value):
            return Problem(field, reason)
        if isinstance(value, list) and not _one_kind(value):
            return Problem(field, "must be a list of values of one kind: text, numbers, booleans or objects")
    return [_parameter(value, seal) for value in values.values()]


def _parameter(value: Json, seal: Seal) -> Parameter:
    if isinstance(value, list):
        oid = max(map(_type, value), key=[_INFERRED, _BOOL, _INT4, _INT8, _NUMERIC, _JSONB].index, default=_INFERRED)
        return Parameter(_ARRAY_OF[oid], "{" + ",".join(_element(_text(each, seal)) for each in value) + "}")
    return Parameter(_type(value), _text(value, seal))


def _one_kind(values: list[Json]) -> bool:
    kinds = {_kind(value) for value in values if value is not None}
    return len(kinds) <= 1 and list not in kinds


def _kind(value: Json) -> type[Any]:
    return Decimal if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _type(value: Json) -> int:
    match value:
        case bool():
            return _BOOL
        case int() if -(2**31) <= value < 2**31:
            return _INT4
        case int() if -(2**63) <= value < 2**63:
            return _INT8
        case int() | Decimal():
            return _NUMERIC
        case dict():
            return _JSONB
        case _:
            return _INFERRED


def _text(value: Json, seal: Seal) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str():
            address = normal_email(value)
            return value if address is None else seal(address)
        case int() | Decimal():
            return str(value)
        case _:
            return encode(value).decode()


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
