"""JSON in a column as structs, every number with all its digits: polars's own decoding makes doubles of them.

    true, false        Boolean         objects     Struct, with a field for every key that any of them has
    whole numbers      Int64           lists       List
    other numbers      Decimal         nothing     Null
    text, and values of several kinds  String: text as it is, other values as JSON

Numbers that fit neither Int64 nor 38 digits are String, too. Importing this module loads polars.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import polars as pl
from polars.datatypes import DataTypeClass

from api.language.codec import decode, encode

_MOST_DIGITS = 38


def structs(texts: pl.Series) -> pl.Series:
    """Return what the JSON texts of a column say, as one type that holds them all."""
    values = [None if text is None else decode(text.encode()) for text in texts]
    kind = _kind(values)
    return pl.Series(texts.name, [_fitted(value, kind) for value in values], dtype=kind)


def _kind(values: Sequence[Any]) -> pl.DataType:
    """Return the type that holds all of these values and loses nothing of them."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pl.Null()
    if kinds == {bool}:
        return pl.Boolean()
    if kinds == {dict}:
        return _struct([value for value in values if value is not None])
    if kinds == {list}:
        return pl.List(_kind([each for value in values if value is not None for each in value]))
    if kinds <= {int, Decimal}:
        return _number([Decimal(value) for value in values if value is not None], whole=kinds == {int})
    return pl.String()


def _struct(objects: Sequence[dict[str, Any]]) -> pl.DataType:
    keys = dict.fromkeys(key for each in objects for key in each)
    return pl.Struct({key: _kind([each.get(key) for each in objects]) for key in keys})


def _number(numbers: Sequence[Decimal], *, whole: bool) -> pl.DataType:
    if whole and all(-(2**63) <= number < 2**63 for number in numbers):
        return pl.Int64()
    before = after = 0
    for number in numbers:
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)  # JSON has no NaN
        before, after = max(before, number.adjusted() + 1), max(after, -exponent)
    return pl.Decimal(_MOST_DIGITS, after) if before + after <= _MOST_DIGITS else pl.String()


def _fitted(value: Any, kind: pl.DataType | DataTypeClass) -> Any:
    """Return a value as a column of that type takes it."""
    match kind:
        case _ if value is None:
            return None
        case pl.Struct():
            return {field.name: _fitted(value.get(field.name), field.dtype) for field in kind.fields}
        case pl.List():
            return [_fitted(each, kind.inner) for each in value]
        case pl.Decimal():
            return Decimal(value)
        case pl.String():
            return value if isinstance(value, str) else encode(value).decode()
        case _:
            return value
