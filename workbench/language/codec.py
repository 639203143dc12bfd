"""JSON in and out with exact numbers: integers stay integers, all other numbers become `Decimal`."""

import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | Decimal | bool | None"
else:
    Json = Any  # msgspec, which reads the annotations of structs, cannot follow a recursive alias

MAX_DEPTH = 32  # levels
CUT_DEPTH = 100  # levels; deeper values are cut off before a parser runs out of stack
# jsonb would write 1e130000 out as 130,001 digits. Python prints integers of up to 4,300 digits, and Postgres keeps a
# scale of up to 16,383.
MAX_EXPONENT = 308
MAX_DIGITS = 400

BACKSLASH = ord("\\")  # `92 in raw` takes 0.02 µs for 400 bytes, `b"\\" in raw` 0.4 µs
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
# Keeps decimals as text, so that `compact` writes `1.50` as it was sent.
_RAW_NUMBER_DECODER = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_SORTING_ENCODER = msgspec.json.Encoder(decimal_format="number", order="deterministic")
_TOO_LARGE = 10 ** (MAX_EXPONENT + 1)
_NUMBER_PROBLEM = f"contains a number outside ±1e{MAX_EXPONENT} or of more than {MAX_DIGITS} digits"
_SCALARS = frozenset({str, int, bool})
_SURROGATE = re.compile("[\ud800-\udfff]")
# Escaped backslashes and surrogate pairs are matched first, so that only an unpaired surrogate reaches the group. The
# repeated groups are not possessive: before 3.11.5, Python loses its place after half a pair (gh-106052).
_LONE_SURROGATE = re.compile(
    rb"(?:\\\\)+|(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+|\\(u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+|([\[{]++)|([\]}]++)', re.DOTALL)


_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # with lone surrogates, and the other ends of a line


class MalformedJsonError(ValueError):
    """The bytes are not one JSON value in UTF-8."""


def malformed_json(error: Exception) -> str:
    """Return the reason for refusing a body that could not be decoded."""
    if isinstance(error, UnicodeDecodeError):
        return f"malformed JSON: not UTF-8 at byte {error.start + 1}"
    return f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}"


def exactness_problem(value: object, path: str) -> str | None:
    """Return why JSON cannot keep a value at a path (NaN, infinity, a time without a zone), or None if it can."""
    match value:
        case str() | int() | None:  # most values; the test for Mapping() takes longer than all others
            return None
        case float() | Decimal():
            if math.isfinite(value):
                return None
            return f"{path}: {value} is not a number that JSON has; leave it out, or write None"
        case datetime():
            return None if value.tzinfo is not None else f"{path}: a time needs its zone: datetime(…, tzinfo=UTC)"
        case list() | tuple():
            for index, item in enumerate(value):
                if type(item) not in _SCALARS and (problem := exactness_problem(item, f"{path}[{index}]")):
                    return problem
        case dict() | Mapping():
            for name, item in value.items():
                if type(item) not in _SCALARS and (
                    problem := exactness_problem(item, f"{path}.{name}" if path else str(name))
                ):
                    return problem
        case _:
            pass
    return None


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Return the value of a JSON text; raise MalformedJsonError."""
    return _decode(_DECODER, raw)


def compact(raw: bytes) -> bytes:
    """Return a JSON text without white space and needless escapes, its decimals as they were written."""
    return _ENCODER.encode(_decode(_RAW_NUMBER_DECODER, raw))


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise MalformedJsonError("nested too deeply") from None
    except (ArithmeticError, msgspec.ValidationError):  # an exponent of twenty digits, an integer of over 4,300
        raise MalformedJsonError(_NUMBER_PROBLEM) from None
    except ValueError as error:  # includes msgspec.DecodeError and UnicodeDecodeError
        raise MalformedJsonError(str(error)) from None


def encode(value: Any) -> bytes:
    """Return the compact UTF-8 JSON of a value; decimals are written as numbers with all their digits."""
    return _ENCODER.encode(value)


def same_json(left: Any, right: Any) -> bool:
    """Return whether two values are the same JSON to the last digit, in any order of keys: `1.0` and `1.00` differ."""
    return _SORTING_ENCODER.encode(left) == _SORTING_ENCODER.encode(right)


def normalize(value: Any) -> Any:
    """Return a Python value as the service would receive it: floats become exact decimals, tuples lists."""
    return decode(encode(value))


def as_stored(value: Any) -> Any:
    """Return a decoded value as jsonb gives it back: keys by length and bytes, no exponents, no minus zero."""
    kind = type(value)  # `match` takes twice the time
    if kind is dict:
        keys = sorted(value)  # code points have the order of their UTF-8
        keys.sort(key=len if "".join(keys).isascii() else lambda key: len(key.encode()))
        return {key: child if type(child := value[key]) in _SCALARS else as_stored(child) for key in keys}
    if kind is list:
        return [as_stored(item) for item in value]
    if kind is Decimal:
        return int(value) if value.as_tuple().exponent >= 0 else value or value.copy_abs()
    return value


def replace_lone_surrogates(raw: bytes) -> bytes:
    r"""Replace every unpaired surrogate escape by `\u0000`, so that the rest of the body can still be decoded.

    `text_problem` refuses both for the same reason, so the error still names the field.
    """
    if BACKSLASH not in raw or (b"\\ud" not in raw and b"\\uD" not in raw):
        return raw
    return _LONE_SURROGATE.sub(lambda match: rb"\u0000" if match[1] else match[0], raw)


def truncate_depth(raw: bytes) -> bytes:
    """Replace everything nested deeper than `CUT_DEPTH` by null, so that the rest of the body can still be decoded.

    What remains is still deeper than `MAX_DEPTH`, so the error still names the field.
    """
    pieces: list[bytes] = []
    depth = start = 0
    for match in _BRACKETS.finditer(raw):
        opened, closed = len(match[1] or b""), len(match[2] or b"")
        if depth <= CUT_DEPTH < depth + opened:
            pieces += raw[start : match.start() + CUT_DEPTH - depth], b"null"
        if depth - closed <= CUT_DEPTH < depth:
            start = match.start() + depth - CUT_DEPTH
        depth += opened - closed
    if depth <= CUT_DEPTH:
        pieces.append(raw[start:])
    return b"".join(pieces)


def storage_problem(value: Json) -> str | None:
    """Return why a decoded value cannot be stored (NUL, number out of range, too deep), or None."""
    return _problem(value, 1)


def text_problem(text: str) -> str | None:
    """Return why a string cannot be stored, or None."""
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        return "contains U+0000 or an unpaired surrogate"
    return None


def _problem(value: Json, depth: int) -> str | None:
    match value:
        case str():
            return text_problem(value)
        case int():
            return None if -_TOO_LARGE < value < _TOO_LARGE else _NUMBER_PROBLEM
        case Decimal():
            in_range = value.is_finite() and abs(value.adjusted()) <= MAX_EXPONENT
            return None if in_range and len(value.as_tuple().digits) <= MAX_DIGITS else _NUMBER_PROBLEM
        case dict() | list():
            if depth > MAX_DEPTH:
                return f"is nested more than {MAX_DEPTH} levels deep"
            if isinstance(value, dict):
                for key in value:
                    if reason := text_problem(str(key)):  # in Python, keys may be numbers
                        return reason
            for child in value.values() if isinstance(value, dict) else value:
                if reason := _problem(child, depth + 1):
                    return reason
            return None
        case _:
            return None


MISSING: Any = object()


def value_at(path: str, context: Mapping[str, Any]) -> Any:
    """Return the value at a path, or MISSING: first a literal key of the context, then dots descend into objects."""
    if path in context:
        return context[path]
    value: Any = context
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def utc_text(moment: datetime) -> str:
    """Return a moment as text: `2026-11-27T09:00:00Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def json_equal(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal, without coercion: `1` equals `1.0`, and neither `true` nor `"1"`."""
    if isinstance(left, bool) or isinstance(right, bool):  # True equals 1 in Python
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(json_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    return left == right


def printable(text: str, *, kept: str = "\n\t") -> str:
    """Return a text with the escapes of JSON (`\\u001b`) for control and format characters that are not `kept`.

    A terminal obeys control characters (Unicode Cc): a text of a customer could change the title of the window, or hide
    lines that were printed before. Format characters (Cf), such as marks of direction, make a text look like another.
    """
    if text.isprintable():  # the usual case of a short text; a long one has line breaks
        return text
    return "".join(
        character
        if character in kept or unicodedata.category(character) not in _UNPRINTABLE
        else re.sub("(....)", r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())
        for character in text
    )
