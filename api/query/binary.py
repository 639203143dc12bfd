"""From Postgres's binary form of values to Arrow, a column at a time. The text of a moment costs more than all the rest of its row.

What has no text form that Arrow reads (`infinity`, years before 1 or beyond 9999) is refused here as well.
"""

import sys
from array import array
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from api.store.rows import Cells

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # from 1970 to 2000, where Postgres begins
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939  # of the years 1 and 9999, from 2000
_DASHES = (8, 13, 18, 23)
_DIGITS = 32  # of a uuid
_VERSION = 1  # bytes before the text of jsonb
_LONGEST = 2**31 - 1  # bytes of a cell; left out, Arrow 26 calculates a negative size


def _text(cells: Cells) -> pa.Array:
    return cells.view(pa.string())


def _jsonb(cells: Cells) -> pa.Array:
    return _text(pc.binary_slice(cells, _VERSION, _LONGEST))


def _bool(cells: Cells) -> pa.Array:
    return pc.not_equal(_numbers(cells, "B", pa.uint8()), 0)


def _date(cells: Cells) -> pa.Array:
    days = _within(_numbers(cells, "i", pa.int32()), _FIRST_DAY, _LAST_DAY)
    return pc.add(days, pa.scalar(_EPOCH_DAYS, pa.int32())).view(pa.date32())


def _moment(cells: Cells) -> pa.Array:
    moments = _within(_numbers(cells, "q", pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    return pc.add(moments, _EPOCH_DAYS * _DAY_US).view(pa.timestamp("us"))


def _uuid(cells: Cells) -> pa.Array:
    digits = bytes(_packed(cells)).hex().encode()
    count = len(digits) // _DIGITS
    text = pa.Array.from_buffers(pa.binary(_DIGITS), count, [None, pa.py_buffer(digits)]).cast(pa.binary())
    for place in _DASHES:
        text = pc.binary_replace_slice(text, place, place, b"-")
    return _spread(_text(text), cells)


def _numeral(code: str, kind: pa.DataType) -> Callable[[Cells], pa.Array]:
    return lambda cells: _numbers(cells, code, kind)


READERS: Mapping[int, Callable[[Cells], pa.Array]] = {
    16: _bool,
    19: _text,
    20: _numeral("q", pa.int64()),
    21: _numeral("h", pa.int16()),
    23: _numeral("i", pa.int32()),
    25: _text,
    26: lambda cells: _numbers(cells, "I", pa.uint32()).cast(pa.int64()),
    114: _text,
    700: _numeral("f", pa.float32()),
    701: _numeral("d", pa.float64()),
    705: _text,
    1042: _text,
    1043: _text,
    1082: _date,
    1114: _moment,
    1184: lambda cells: _moment(cells).view(pa.timestamp("us", "UTC")),
    2950: _uuid,
    3802: _jsonb,
}
"""How cells of each type are read; by its oid. They raise pa.ArrowInvalid."""


def _numbers(cells: Cells, code: str, kind: pa.DataType) -> pa.Array:
    """Return numbers of one size; `code`: that of `array`."""
    values = array(code)
    values.frombytes(_packed(cells))
    if sys.byteorder == "little":
        values.byteswap()
    return _spread(pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]), cells)


def _packed(cells: Cells) -> memoryview:
    """Return the bytes of all cells that are not null."""
    _, ends, content = cells.buffers()
    if content is None:
        return memoryview(b"")
    places = memoryview(ends).cast("b").cast("i")
    return memoryview(content)[places[cells.offset] : places[cells.offset + len(cells)]]


def _spread(found: pa.Array, cells: Cells) -> pa.Array:
    """Return the values of all cells, given those of the ones that are not null."""
    if not cells.null_count:
        return found
    there = cells.is_valid()
    positions = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
    return found.take(pc.if_else(there, positions, None))


def _within(numbers: pa.Array, first: int, last: int) -> pa.Array:
    """Return the numbers if all of them are in a range."""
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] > last):
        raise pa.ArrowInvalid("out of range")
    return numbers
