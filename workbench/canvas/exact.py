"""Values on their way to a browser and back: numbers that JavaScript would change travel as their digits."""

from decimal import Decimal
from typing import Any, Final

from api.language.codec import decode, normalise

_DIGITS: Final = "$exact"  # {"$exact": "1.0"} is the number 1.0
_OBJECT: Final = "$object"  # {"$object": {…}} is an object that looks like one of these two
_MARKS: Final = ({_DIGITS}, {_OBJECT})
_SAFE: Final = 2**53 - 1


def to_browser(value: Any) -> Any:
    """Return a JSON value in which no number changes when JavaScript reads it."""
    return _out(normalise(value))


def from_browser(value: Any) -> Any:
    """Return the value that `to_browser` was given; raise ValueError for digits that are no number."""
    match value:
        case dict() if value.keys() == {_DIGITS}:
            return _number(value[_DIGITS])
        case dict():
            inside = value[_OBJECT] if value.keys() == {_OBJECT} else value
            return {key: from_browser(each) for key, each in inside.items()}
        case list():
            return [from_browser(each) for each in value]
        case _:
            return value


def _number(digits: Any) -> Any:
    number = decode(str(digits).encode())
    if isinstance(number, bool) or not isinstance(number, int | Decimal):
        raise ValueError(f"{digits!r} is not a number")
    return number


def _out(value: Any) -> Any:
    match value:
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) <= _SAFE else {_DIGITS: str(value)}
        case Decimal():
            return float(value) if _survives(value) else {_DIGITS: str(value)}
        case dict():
            inside = {key: _out(each) for key, each in value.items()}
            return {_OBJECT: inside} if set(value) in _MARKS else inside
        case _:
            return [_out(each) for each in value]


def _survives(value: Decimal) -> bool:
    """Return whether JavaScript prints the number just as it was written."""
    text = str(value)
    return "E" not in text and not text.endswith("0") and repr(float(value)) == text
