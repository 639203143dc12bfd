"""Cells of one column of a query result as an Arrow array, from Postgres's binary form and from its text form.

Binary cells are converted a column at a time, without a Python call per cell. Values that Arrow or RFC 3339 cannot
express (`infinity`, years before 1 or after 9999) raise pa.ArrowInvalid.
"""

import re
import sys
from array import array
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from api.store.analyst import Cells

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01, where Postgres counts from
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939  # of the years 1 and 9999, counted from 2000-01-01; infinity lies outside
_UUID_HYPHENS = (8, 13, 18, 23)
_UUID_DIGITS = 32
_JSONB_VERSION_BYTES = 1
_MAX_CELL_BYTES = 2**31 - 1  # if `stop` is left out of binary_slice, Arrow 26 calculates a negative size

_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|((?:[^,"{}\\]|\\.)+)|(\{)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_BOUNDS = re.compile(rb"^(?:\[-?\d+:-?\d+\])+=")  # of an array that does not begin at 1: [0:2]={…}

ReadColumn = Callable[[Cells], pa.Array]


def as_text(cells: Cells) -> pa.Array:
    return cells.view(pa.string())  # a cast would check the UTF-8 again, as Postgres did, and take twice the time


def array_elements(cell: bytes) -> list[bytes | None]:
    """Return the elements of a one-dimensional array; of an array of arrays, the texts of the inner arrays."""
    body = _BOUNDS.sub(b"", cell)[1:-1]
    elements: list[bytes | None] = []
    start = 0
    while (match := _ELEMENT.match(body, start)) is not None:
        quoted, plain, _ = match.groups()
        end = match.end()
        if quoted is not None:
            elements.append(_ESCAPED.sub(rb"\1", quoted))
        elif plain is not None:
            elements.append(None if plain == b"NULL" else _ESCAPED.sub(rb"\1", plain))
        else:
            end = _inner_end(body, start)
            elements.append(body[start:end])
        start = end + 1  # skip the comma
    return elements


def _inner_end(body: bytes, start: int) -> int:
    """Return the position after the brace that closes the one at `start`."""
    depth, quoted, index = 0, False, start  # a brace inside quotes does not count
    while index < len(body):
        character = body[index : index + 1]
        if character == b"\\":
            index += 1
        elif character == b'"':
            quoted = not quoted
        elif not quoted and character in b"{}":
            depth += 1 if character == b"{" else -1
            if depth == 0:
                return index + 1
        index += 1
    return len(body)


def _date(cells: Cells) -> pa.Array:
    days = _in_range(_numbers(cells, "i", pa.int32()), _FIRST_DAY, _LAST_DAY)
    return pc.add(days, pa.scalar(_EPOCH_DAYS, pa.int32())).view(pa.date32())


def _timestamp(cells: Cells) -> pa.Array:
    microseconds = _in_range(_numbers(cells, "q", pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    return pc.add(microseconds, _EPOCH_DAYS * _DAY_US).view(pa.timestamp("us"))


def _uuid(cells: Cells) -> pa.Array:
    # One hex() over all cells, cut into texts of 32 digits without copying; then Arrow inserts the hyphens.
    digits = bytes(_valid_bytes(cells)).hex().encode()
    count = len(digits) // _UUID_DIGITS
    texts = pa.Array.from_buffers(pa.binary(_UUID_DIGITS), count, [None, pa.py_buffer(digits)]).cast(pa.binary())
    for position in _UUID_HYPHENS:
        texts = pc.binary_replace_slice(texts, position, position, b"-")
    return _with_nulls(as_text(texts), cells)


def _number_reader(code: str, data_type: pa.DataType) -> ReadColumn:
    return lambda cells: _numbers(cells, code, data_type)


# By the oid of a type (`SELECT oid, typname FROM pg_type`).
BINARY_READERS: Mapping[int, ReadColumn] = {
    16: lambda cells: pc.not_equal(_numbers(cells, "B", pa.uint8()), 0),
    19: as_text,
    20: _number_reader("q", pa.int64()),
    21: _number_reader("h", pa.int16()),
    23: _number_reader("i", pa.int32()),
    25: as_text,
    26: lambda cells: _numbers(cells, "I", pa.uint32()).cast(pa.int64()),
    114: as_text,
    700: _number_reader("f", pa.float32()),
    701: _number_reader("d", pa.float64()),
    705: as_text,
    1042: as_text,
    1043: as_text,
    1082: _date,
    1114: _timestamp,
    1184: lambda cells: _timestamp(cells).view(pa.timestamp("us", "UTC")),
    2950: _uuid,
    3802: lambda cells: as_text(pc.binary_slice(cells, _JSONB_VERSION_BYTES, _MAX_CELL_BYTES)),
}


def _numbers(cells: Cells, code: str, data_type: pa.DataType) -> pa.Array:
    """Return numbers of one size; `code` is the type code of `array.array`."""
    values = array(code)
    values.frombytes(_valid_bytes(cells))
    if sys.byteorder == "little":  # Postgres sends big-endian
        values.byteswap()
    return _with_nulls(pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(values)]), cells)


def _valid_bytes(cells: Cells) -> memoryview:
    """Return the bytes of all cells that are not null, one after the other."""
    _, offset_buffer, content = cells.buffers()
    if content is None:
        return memoryview(b"")
    offsets = memoryview(offset_buffer).cast("b").cast("i")
    return memoryview(content)[offsets[cells.offset] : offsets[cells.offset + len(cells)]]


def _with_nulls(values: pa.Array, cells: Cells) -> pa.Array:
    """Return `values`, which has one value for each cell that is not null, with the nulls of `cells` inserted."""
    if not cells.null_count:
        return values
    valid = cells.is_valid()
    positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return values.take(pc.if_else(valid, positions, None))


def _in_range(numbers: pa.Array, first: int, last: int) -> pa.Array:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] > last):
        raise pa.ArrowInvalid("out of range")
    return numbers
