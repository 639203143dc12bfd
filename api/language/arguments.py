"""Values of parameters as a decoded log has them: what none can be, and what people write for them.

The reader of logs (`chain.decode`) makes them; what is said here of types holds for all that it makes, and a test compares.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from api.language.abi import Array, Parameter, Text, Tuple, Type, Word, written
from api.language.codec import Json

SAFE_BITS = 48  # numbers of more are texts of all their digits, whatever the value

_DIGITS = re.compile(r"0|-?[1-9][0-9]*")
_HEX = re.compile(r"0x(?:[0-9a-f]{2})*")
_HASH = re.compile(r"0x[0-9a-f]{64}")
_LONGEST = 100  # digits of a number that are looked at


def unfit_argument(parameter: Parameter, value: Json) -> str | None:
    """Say why no log has this value in a parameter, or return None."""
    if isinstance(parameter.type, Word) or parameter.indexed is False:
        return unfit_value(parameter.type, value)
    if isinstance(value, str) and _HASH.fullmatch(value):
        return None
    if parameter.indexed:
        return f"is an indexed {written(parameter.type)}, of which a log has only the hash: 0x and 64 digits"
    return unfit_value(parameter.type, value)


def unfit_value(kind: Type, value: Json) -> str | None:
    """Say why no value of a type is this one, or return None."""
    match kind:
        case Word():
            return _unfit_word(kind, value)
        case Text(kind="string"):
            return None if isinstance(value, str) else "is string, whose values are texts"
        case Text():
            return _unfit_bytes("bytes", None, value)
        case Array():
            return _unfit_array(kind, value)
        case Tuple():
            return _unfit_tuple(kind, value)


def as_decoded(kind: Type, value: Json) -> Json:
    """Return what people write for a value of a type as a log has it; what is none of them stays as it is."""
    match kind:
        case Word(kind="uint" | "int", size=bits):
            return _number_as_decoded(bits, value)
        case Word(kind="address" | "bytes") | Text(kind="bytes"):
            return value.lower() if isinstance(value, str) else value
        case Array(of=of) if isinstance(value, list):
            return [as_decoded(of, each) for each in value]
        case Tuple(parts=parts) if isinstance(value, Mapping):
            kinds = {each.name: each.type for each in parts}
            return {name: as_decoded(kinds[name], each) if name in kinds else each for name, each in value.items()}
        case _:
            return value


def bounds(kind: Word) -> tuple[int, int]:
    """Return the least and the greatest number of a type."""
    if kind.kind == "uint":
        return 0, 2**kind.size - 1
    return -(2 ** (kind.size - 1)), 2 ** (kind.size - 1) - 1


def _number_as_decoded(bits: int, value: Json) -> Json:
    if type(value) is int and bits > SAFE_BITS:
        return str(value)
    if isinstance(value, str) and bits <= SAFE_BITS and len(value) <= _LONGEST and _DIGITS.fullmatch(value):
        return int(value)
    return value


def _unfit_word(kind: Word, value: Json) -> str | None:
    if kind.kind in ("uint", "int"):
        return _unfit_number(kind, value)
    if kind.kind == "bool":
        return None if isinstance(value, bool) else "is bool, whose values are true and false"
    return _unfit_bytes(written(kind), kind.size, value)


def _unfit_number(kind: Word, value: Json) -> str | None:
    name, is_wide = written(kind), kind.size > SAFE_BITS
    if is_wide and type(value) is int:
        return f"is {name}, whose values are texts of all their digits: write {str(value)!r}"
    if not is_wide and isinstance(value, str) and _DIGITS.fullmatch(value):
        return f"is {name}, whose values are numbers: write {value[:_LONGEST]}"
    if is_wide and not (isinstance(value, str) and len(value) <= _LONGEST and _DIGITS.fullmatch(value)):
        return f"is {name}, whose values are texts of their digits, like '1000000'"
    if not is_wide and type(value) is not int:
        return f"is {name}, whose values are whole numbers"
    least, greatest = bounds(kind)
    if least <= int(str(value)) <= greatest:
        return None
    return f"is {name}, whose values are {least} to {greatest}"


def _unfit_bytes(name: str, size: int | None, value: Json) -> str | None:
    digits = "pairs of digits" if size is None else f"{2 * size} digits"
    if not isinstance(value, str):
        return f"is {name}, whose values are texts: 0x and {digits}"
    if value != value.lower():
        return f"is compared in lower case: write {value.lower()}"
    if not _HEX.fullmatch(value) or (size is not None and len(value) != 2 + 2 * size):
        return f"is {name}, whose values are 0x and {digits}"
    return None


def _unfit_array(kind: Array, value: Json) -> str | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return f"is {written(kind)}, whose values are arrays"
    if kind.length is not None and len(value) != kind.length:
        return f"is {written(kind)}, which has {kind.length} values"
    return _first((f"[{number}]", unfit_value(kind.of, each)) for number, each in enumerate(value))


def _unfit_tuple(kind: Tuple, value: Json) -> str | None:
    names = [each.name for each in kind.parts]
    if not isinstance(value, Mapping) or set(value) != set(names):
        return f"is {written(kind)}, whose values are objects with {', '.join(names)}"
    return _first((f".{each.name}", unfit_value(each.type, value[each.name])) for each in kind.parts)


def _first(said: Any) -> str | None:
    return next((f"{where} {reason}" for where, reason in said if reason is not None), None)
