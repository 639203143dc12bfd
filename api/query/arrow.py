"""Query results as an Arrow IPC stream. A column's Arrow type follows from its Postgres type alone, never from its
values.

    bool                          bool                int2, int4, int8, oid     int16, int32, int64, int64
    float4, float8                float, double       date                      date32
    timestamptz, timestamp        timestamp[us, UTC], timestamp[us]
    numeric(p,s), p <= 38         decimal128(p, s), exact
    numeric                       decimal128(38, 9), as BigQuery's NUMERIC: half up at the ninth decimal
    text[], varchar[], uuid[] …   list<string>
    everything else               string, in Postgres's text form (jsonb, uuid, interval …)

decimal128(38, 9) is used because sum(bigint), money and token amounts arrive exact and as numbers a frame can
calculate with; doubles would silently lose digits past 2^53, and text would need a cast for every average. Values that
do not fit (more than 29 digits before the point, NaN, the date infinity, years outside 1-9999) raise an error and are
never changed.

If every column has a reader for Postgres's binary form (`BINARY_READERS`), the cells are fetched in that form:
formatting a timestamptz as text costs Postgres more than the rest of its row. libpq can only request the same form for
all columns.
"""

import struct
from collections.abc import Collection
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc

from api.query.cells import BINARY_READERS, ReadColumn, array_elements, as_text
from api.query.gateway import InvalidQueryError
from api.store.analyst import Cells, ResultColumn
from workbench.language.problem import Problem

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
ARRAY_OIDS = frozenset({1002, 1003, 1009, 1014, 1015, 2951})  # of text, names, characters and uuids

_NUMERIC = 1700
_MAX_DIGITS, _DEFAULT_SCALE = 38, 9
_DECIMAL_CONTEXT = Context(prec=2 * _MAX_DIGITS, rounding=ROUND_HALF_UP)
_TYPES: dict[int, pa.DataType] = {
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


class ArrowStream:
    """Writes one stream: `batch` for each batch, then `end`. With zstd, events take a third of their size."""

    media_type = MEDIA_TYPE
    binary: Collection[int] = frozenset(BINARY_READERS)
    compression: str | None = "zstd"

    def __init__(self, columns: tuple[ResultColumn, ...]) -> None:
        names = [column.name for column in columns]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise InvalidQueryError(Problem("sql", f'two columns are named "{duplicate}"; rename one of them with AS'))
        self._columns = columns
        self._readers = [_reader(column) for column in columns]
        self._schema = pa.schema(
            [pa.field(column.name, arrow_type(column), metadata={"postgres": column.type}) for column in columns]
        )
        self._stream = BatchStream(self._schema, self.compression)

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the bytes for `rows` rows, given as the cells of each column; raise InvalidQueryError."""
        arrays = []
        for column, read, cells in zip(self._columns, self._readers, columns, strict=True):
            try:
                arrays.append(read(cells))
            except (pa.ArrowInvalid, ArithmeticError) as error:
                reason = (
                    f'column "{column.name}" has a value that does not fit {arrow_type(column)}; '
                    "cast it to text, or to float8 if it is a number"
                )
                raise InvalidQueryError(Problem("sql", reason)) from error
        return self._stream.batch(pa.record_batch(arrays, schema=self._schema) if rows else None)

    def end(self) -> bytes:
        return self._stream.end()

    @staticmethod
    def failure(reason: str) -> bytes:
        """Return a message of negative length, which other readers of Arrow refuse, and the reason."""
        text = reason.encode()
        return struct.pack("<Ii", 0xFFFFFFFF, -len(text)) + text


class PlainArrowStream(ArrowStream):
    """An uncompressed stream for a client on the same machine, where compressing takes longer than sending."""

    compression = None


def arrow_type(column: ResultColumn) -> pa.DataType:
    if column.oid == _NUMERIC:
        digits, scale = _MAX_DIGITS, _DEFAULT_SCALE
        if column.modifier >= 0:
            packed = column.modifier - 4  # Postgres adds 4 (VARHDRSZ) to precision << 16 | 11-bit signed scale
            digits, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
        return pa.decimal128(digits, scale) if digits <= _MAX_DIGITS and 0 <= scale <= digits else pa.string()
    if column.oid in ARRAY_OIDS:
        return pa.list_(pa.string())
    return _TYPES.get(column.oid, pa.string())


class BatchStream:
    """Writes an Arrow stream of record batches. The first bytes that it returns begin with the schema."""

    def __init__(self, schema: pa.Schema, compression: str | None = "zstd") -> None:
        self._sink = _Sink()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def batch(self, batch: pa.RecordBatch | None) -> bytes:
        if batch is not None:
            self._writer.write_batch(batch)
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """A file object with the methods that Arrow needs. A BytesIO copies while it grows, which takes twice as long."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []

    def write(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)  # Arrow does not change the buffer afterwards

    def take(self) -> bytes:
        """Return what was written since the last call."""
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


def _reader(column: ResultColumn) -> ReadColumn:
    """Return the conversion of a column's cells, which raises pa.ArrowInvalid or ArithmeticError."""
    data_type = arrow_type(column)
    if column.binary:
        return BINARY_READERS[column.oid]
    if column.oid in ARRAY_OIDS:
        return _arrays
    if pa.types.is_boolean(data_type):
        return lambda cells: pc.equal(as_text(cells), "t")
    if column.oid == _NUMERIC and pa.types.is_decimal(data_type):
        return lambda cells: _decimals(cells, data_type)
    if pa.types.is_string(data_type):
        return as_text
    return lambda cells: as_text(cells).cast(data_type)


def _arrays(cells: Cells) -> pa.Array:
    texts = cells.dictionary_encode()  # each text is read once: many rows have the same tags
    return pa.array(map(array_elements, texts.dictionary.to_pylist()), pa.list_(pa.string())).take(texts.indices)


def _decimals(cells: Cells, data_type: pa.DataType) -> pa.Array:
    try:
        return as_text(cells).cast(data_type)
    except pa.ArrowInvalid:  # more decimals than the scale: round them one by one
        step = Decimal(1).scaleb(-data_type.scale)
        texts = as_text(cells).to_pylist()
        return pa.array(
            [None if text is None else Decimal(text).quantize(step, context=_DECIMAL_CONTEXT) for text in texts],
            data_type,
        )
