"""Answers as an Arrow IPC stream. A column's Arrow type follows from its Postgres type alone, never from its values.

    bool                          bool                int2, int4, int8, oid     int16, int32, int64, int64
    float4, float8                float, double       date                      date32
    timestamptz, timestamp        timestamp[us, UTC], timestamp[us]
    numeric(p,s), p <= 38         decimal128(p, s), exact
    numeric                       decimal128(38, 9), as BigQuery's NUMERIC: half up at the ninth decimal
    text[], varchar[], uuid[] …   list<string>
    everything else               string, in Postgres's text form (jsonb, uuid, interval …)

Why decimal128(38, 9): sum(bigint), money and token amounts arrive exact and as numbers a frame can calculate with; doubles
would silently lose digits past 2^53, text would make every average a cast. What it cannot hold (more than 29 digits before
the point, NaN), and dates such as infinity, are refused with a sentence instead of being changed.
"""

from collections.abc import Callable, Collection
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc

from api.query import binary
from api.query.arrays import elements
from api.query.run import Cells, Column

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
LISTS = frozenset({1002, 1003, 1009, 1014, 1015, 2951})

_MOST_DIGITS, _SCALE = 38, 9
_NUMERIC = 1700
_WIDE = Context(prec=2 * _MOST_DIGITS, rounding=ROUND_HALF_UP)
_PLAIN: dict[int, pa.DataType] = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}

Build = Callable[[Cells], pa.Array]


class NoArrowError(Exception):
    """A value or column has no Arrow form."""


class ArrowStream:
    """Writes one stream: `batch` for each batch, then `end`. Compressed, events are a third of their size."""

    media_type = MEDIA_TYPE
    binary: Collection[int] = frozenset(binary.READERS)
    compression: str | None = "zstd"

    def __init__(self, columns: tuple[Column, ...]) -> None:
        names = [column.name for column in columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise NoArrowError(f'two columns are named "{twice}"; give one another name with AS')
        self._columns = columns
        self._builds = [_build(column) for column in columns]
        self._schema = pa.schema([_field(column) for column in columns])
        self._sink = _Sink()
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        self._writer = pa.ipc.new_stream(self._sink, self._schema, options=options)

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the bytes that carry some rows, given by column; raise NoArrowError."""
        arrays = [
            _built(column, build, cells)
            for column, build, cells in zip(self._columns, self._builds, columns, strict=True)
        ]
        if rows:
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        return self._sink.taken()

    def end(self) -> bytes:
        """Return the bytes that close the stream."""
        self._writer.close()
        return self._sink.taken()


class PlainArrowStream(ArrowStream):
    """For a reader on the same machine, where compressing takes longer than sending."""

    compression = None


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column."""
    if column.oid == _NUMERIC:
        digits, scale = _declared(column.modifier)
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS and 0 <= scale <= digits else pa.string()
    if column.oid in LISTS:
        return pa.list_(pa.string())
    return _PLAIN.get(column.oid, pa.string())


class _Sink:
    """A file of which Arrow needs no more. A BytesIO grows as it is written to, and copies; that takes twice as long."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []

    def write(self, piece: bytes | memoryview) -> None:
        """Take a piece, which stays as it is."""
        self._pieces.append(piece)

    def taken(self) -> bytes:
        """Return what was written since the last time."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def _declared(modifier: int) -> tuple[int, int]:
    """Return precision and scale of a numeric; ours when none was declared."""
    if modifier < 0:
        return _MOST_DIGITS, _SCALE
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, arrow_type(column), metadata={"postgres": column.type})


def _built(column: Column, build: Build, cells: Cells) -> pa.Array:
    try:
        return build(cells)
    except (pa.ArrowInvalid, ArithmeticError) as error:
        raise NoArrowError(
            f'column "{column.name}" has a value that does not fit {arrow_type(column)}; cast it to text, or to float8 if it is a number'
        ) from error


def _build(column: Column) -> Build:
    kind = arrow_type(column)
    if column.binary:
        return binary.READERS[column.oid]
    if column.oid in LISTS:
        return _lists
    if pa.types.is_boolean(kind):
        return lambda cells: pc.equal(_strings(cells), "t")
    if column.oid == _NUMERIC and pa.types.is_decimal(kind):
        return lambda cells: _decimals(cells, kind)
    if pa.types.is_string(kind):
        return _strings
    return lambda cells: _strings(cells).cast(kind)


def _strings(cells: Cells) -> pa.Array:
    return cells.view(pa.string())  # Postgres has checked that it is UTF-8: half the time


def _lists(cells: Cells) -> pa.Array:
    return pa.array([None if cell is None else elements(cell) for cell in cells.to_pylist()], pa.list_(pa.string()))


def _decimals(cells: Cells, kind: pa.DataType) -> pa.Array:
    try:
        return _strings(cells).cast(kind)
    except pa.ArrowInvalid:  # more decimals than fit
        step = Decimal(1).scaleb(-kind.scale)
        return pa.array(
            [
                None if cell is None else Decimal(cell).quantize(step, context=_WIDE)
                for cell in _strings(cells).to_pylist()
            ],
            kind,
        )
