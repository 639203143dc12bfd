"""JSON in and out with every number exact: integers stay integers, all others become `Decimal`.

`1e400` and `1e130000` are refused, not rounded: Postgres would write the second out as 130,001 digits. So are numbers of
more than 400 digits: Python does not print integers past 4,300 digits, Postgres keeps no scale past 16,383.
"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | Decimal | bool | None"
else:
    Json = Any  # msgspec, which reads the annotations of structs, cannot follow an alias that holds itself

MAX_DEPTH = 32
DEEP = 100  # levels; what is nested deeper is cut off before parsers run out of stack
MAX_EXPONENT = 308
MAX_DIGITS = 400

_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_TEXT_KEEPER = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_TOO_LARGE = 10 ** (MAX_EXPONENT + 1)
_ODD_NUMBER = f"contains a number outside ±1e{MAX_EXPONENT} or of more than {MAX_DIGITS} digits"
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONE_SURROGATE = re.compile(
    rb"(?:\\\\)++|(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})++|\\(u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+|([\[{]++)|([\]}]++)', re.DOTALL)


class MalformedJsonError(ValueError):
    """The bytes are not one JSON value in UTF-8."""


def decode(raw: bytes) -> Any:
    """Return the value of a JSON text; raise MalformedJsonError."""
    return _decode(_DECODER, raw)


def compact(raw: bytes) -> bytes:
    """Return a JSON text without white space and needless escapes, its decimals as they were written."""
    return _ENCODER.encode(_decode(_TEXT_KEEPER, raw))


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise MalformedJsonError("nested too deeply") from None
    except ArithmeticError:  # an exponent of twenty digits: past what Decimal can hold
        raise MalformedJsonError(_ODD_NUMBER) from None
    except ValueError as error:  # includes msgspec.DecodeError and UnicodeDecodeError
        raise MalformedJsonError(str(error)) from None


def encode(value: Any) -> bytes:
    """Return the compact UTF-8 JSON of a value; decimals are written as numbers with all their digits."""
    return _ENCODER.encode(value)


def normalise(value: Any) -> Any:
    """Return a Python value as the service would receive it: floats become exact decimals, tuples lists."""
    return decode(encode(value))


def mend_surrogates(raw: bytes) -> bytes:
    r"""Replace every unpaired surrogate escape by `\u0000`, so that one such string does not make a whole body unreadable.

    Both are refused by the same rule of the field they stand in (`unfit_text`).
    """
    if b"\\" not in raw or (b"\\ud" not in raw and b"\\uD" not in raw):
        return raw
    return _LONE_SURROGATE.sub(lambda found: rb"\u0000" if found[1] else found[0], raw)


def cut_depth(raw: bytes) -> bytes:
    """Put null for everything nested deeper than `DEEP` levels, so that one such value does not make a whole body unreadable.

    What remains is still too deep for every field that is kept.
    """
    kept: list[bytes] = []
    depth = start = 0
    for found in _BRACKETS.finditer(raw):
        opened, closed = len(found[1] or b""), len(found[2] or b"")
        if depth <= DEEP < depth + opened:
            kept += raw[start : found.start() + DEEP - depth], b"null"
        if depth - closed <= DEEP < depth:
            start = found.start() + depth - DEEP
        depth += opened - closed
    if depth <= DEEP:
        kept.append(raw[start:])
    return b"".join(kept)


def unfit(value: Json) -> str | None:
    """Say why a decoded value cannot be stored (NUL, number out of range, too deep), or return None."""
    return _unfit(value, 1)


def unfit_text(text: str) -> str | None:
    """Say why a string cannot be stored, or return None."""
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        return "contains U+0000 or an unpaired surrogate"
    return None


def _unfit(value: Json, depth: int) -> str | None:
    match value:
        case str():
            return unfit_text(value)
        case int():
            return None if -_TOO_LARGE < value < _TOO_LARGE else _ODD_NUMBER
        case Decimal():
            return None if _fit_decimal(value) else _ODD_NUMBER
        case dict() | list():
            return _unfit_children(value, depth)
        case _:
            return None


def _fit_decimal(value: Decimal) -> bool:
    in_range = value.is_finite() and abs(value.adjusted()) <= MAX_EXPONENT
    return in_range and len(value.as_tuple().digits) <= MAX_DIGITS


def _unfit_children(value: dict[str, Json] | list[Json], depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} levels deep"
    if isinstance(value, dict):
        for key in value:
            if reason := unfit_text(key):
                return reason
    for child in value.values() if isinstance(value, dict) else value:
        if reason := _unfit(child, depth + 1):
            return reason
    return None


def json_equal(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal, without coercion: `1` equals `1.0`, and neither `true` nor `"1"`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(json_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    return left == right
