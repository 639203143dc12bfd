"""Binding of the caller's values to a statement: a list to `$1…`, an object to `:name`.

Strings and null are sent without a type, so Postgres infers it from the context (`created_at > :since` takes an RFC
3339 string). Booleans, numbers and objects (jsonb) are sent with a type; a list becomes an array of its elements' type.

Email addresses are stored sealed, so a value that is as a whole a valid address is sealed, too: `where email =
:address` finds the contact. An address written into the statement itself stays clear text, for comparing with a
payload.
"""

from collections.abc import Callable
from decimal import Decimal

import msgspec

from api.store.analyst import BoundParameter
from workbench.language.codec import Json, encode, storage_problem
from workbench.language.event import normalize_email
from workbench.language.problem import Problem
from workbench.language.sql import tokenize

MAX_PARAMETERS = 1000

_INFERRED, _BOOL, _INT4, _INT8, _NUMERIC, _JSONB = 0, 16, 23, 20, 1700, 3802
_FROM_NARROW_TO_WIDE = [_INFERRED, _BOOL, _INT4, _INT8, _NUMERIC, _JSONB]
_ARRAY_OF = {_BOOL: 1000, _INT4: 1007, _INT8: 1016, _NUMERIC: 1231, _JSONB: 3807, _INFERRED: _INFERRED}

Seal = Callable[[str], str]


class BoundStatement(msgspec.Struct, frozen=True):
    """A statement with `$n` only, its values, and what is needed to translate errors back to the caller's text.

    `shifts`: for every replaced `:name` the offsets behind it, in `statement` and in the caller's text.
    """

    statement: str
    parameters: list[BoundParameter]
    names: list[str]
    shifts: list[tuple[int, int]]

    def original_position(self, position: int) -> int:
        """Return the position (counted from 1) in the caller's text of a position in `statement`."""
        new, old = max((shift for shift in self.shifts if shift[0] <= position - 1), default=(0, 0))
        return position - new + old

    def original_words(self, message: str) -> str:
        """Return a message of Postgres with the caller's parameter names."""
        for number in range(len(self.names), 0, -1):  # backwards, so that $1 does not match the beginning of $10
            message = message.replace(f"parameter ${number}", f"parameter {self.names[number - 1]}")
        return message


def bind(text: str, params: object, seal: Seal) -> BoundStatement | Problem:
    """Return the statement to send, or what is wrong with the parameters."""
    match params:
        case list() if len(params) <= MAX_PARAMETERS:
            used = {int(token.text[1:]) for token in tokenize(text) if token.kind == "positional"}
            if missing := sorted(number for number in used if not 1 <= number <= len(params)):
                return Problem("params", f"${missing[0]} has no value, {len(params)} given")
            if unused := sorted(set(range(1, len(params) + 1)) - used):
                return Problem(f"params[{unused[0] - 1}]", f"is not used: the statement has no ${unused[0]}")
            values = _bound_values({f"params[{index}]": value for index, value in enumerate(params)}, seal)
            names = [f"${number}" for number in range(1, len(params) + 1)]
            return values if isinstance(values, Problem) else BoundStatement(text, values, names, [])
        case dict() if len(params) <= MAX_PARAMETERS:
            return _bind_names(text, params, seal)
        case None:
            return _bind_names(text, {}, seal)
        case list() | dict():
            return Problem("params", f"at most {MAX_PARAMETERS} parameters are allowed")
        case _:
            return Problem("params", "must be a list for $1, $2, … or an object for :name")


def _bind_names(text: str, params: dict[str, Json], seal: Seal) -> BoundStatement | Problem:
    numbers: dict[str, int] = {}
    pieces: list[str] = []
    shifts: list[tuple[int, int]] = []
    done = length = 0  # offsets in the caller's text and in the new one
    for token in tokenize(text):
        if token.kind == "positional":
            return Problem("params", f"{token.text} takes its value from a list; with an object write :name")
        if token.kind != "name":
            continue
        number = numbers.setdefault(token.text[1:], len(numbers) + 1)
        piece = text[done : token.start] + f"${number}"
        pieces.append(piece)
        length += len(piece)
        done = token.start + len(token.text)
        shifts.append((length, done))
    if missing := [name for name in numbers if name not in params]:
        return Problem(f"params.{missing[0]}", f"is missing: the statement uses :{missing[0]}")
    if unused := [name for name in params if name not in numbers]:
        return Problem(f"params.{unused[0]}", f"is not used: the statement has no :{unused[0]}")
    values = _bound_values({f"params.{name}": params[name] for name in numbers}, seal)
    if isinstance(values, Problem):
        return values
    return BoundStatement("".join([*pieces, text[done:]]), values, [f":{name}" for name in numbers], shifts)


def _bound_values(values: dict[str, Json], seal: Seal) -> list[BoundParameter] | Problem:
    """Return the values, which are given by field name, in Postgres's text form and in the same order."""
    parameters = []
    for field, value in values.items():
        if reason := storage_problem(value):
            return Problem(field, reason)
        if not isinstance(value, list):
            parameters.append(BoundParameter(_oid(value), _text(value, seal)))
            continue
        # JSON does not distinguish 1 and 1.5, so whole numbers and decimals go together; booleans are Python ints, too.
        kinds = {Decimal if type(item) is int else type(item) for item in value if item is not None}
        if len(kinds) > 1 or list in kinds:
            return Problem(field, "must be a list of values of one type: text, numbers, booleans or objects")
        oid = max(map(_oid, value), key=_FROM_NARROW_TO_WIDE.index, default=_INFERRED)
        texts = [_text(item, seal) for item in value]
        elements = [
            "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts
        ]
        parameters.append(BoundParameter(_ARRAY_OF[oid], "{" + ",".join(elements) + "}"))
    return parameters


def _oid(value: Json) -> int:
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
            address = normalize_email(value)
            return value if address is None else seal(address)
        case int() | Decimal():
            return str(value)
        case _:
            return encode(value).decode()
