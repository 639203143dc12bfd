"""The formats of a query result, chosen by media type, and the stream of its bytes. Every number keeps all its digits.

JSON is `{"columns": […], "rows": [[…], …]}`: timestamps in RFC 3339, with Z for timestamptz, jsonb as JSON, arrays of
text as arrays, NaN and infinities as strings (like Postgres's to_json). CSV follows RFC 4180: null is an empty field,
an empty string is `""`. Spreadsheets run cells that begin with `=`, and customers write texts, so CSV for spreadsheets
has an apostrophe before such texts. Arrow is in `api.query.arrow`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol

from api.query.arrow import ARRAY_OIDS, MEDIA_TYPE, ArrowStream, PlainArrowStream
from api.query.cells import array_elements
from api.query.results import QueryResult
from api.store.analyst import Cells, ResultColumn, RowBatch
from workbench.language.codec import encode

WriteCell = Callable[[bytes], bytes]

_INTEGERS = frozenset({20, 21, 23, 26})
_NUMBERS = frozenset({700, 701, 1700})
_BOOL, _TIMESTAMP, _TIMESTAMPTZ = 16, 1114, 1184
_JSON = frozenset({114, 3802})
_CSV_SPECIAL = re.compile(rb'[",\r\n]')
_FORMULA_STARTS = (b"=", b"+", b"-", b"@", b"\t", b"\r")
_PIECE_BYTES = 128 * 1024


class ResultWriter(Protocol):
    """Writes one result in one format: `batch` for each batch, then `end`."""

    media_type: str
    binary: Collection[int]  # types (oids) that the writer takes in Postgres's binary form

    def __init__(self, columns: tuple[ResultColumn, ...]) -> None: ...

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the bytes for `rows` rows, given as the cells of each column."""
        ...

    def end(self) -> bytes:
        """Return the bytes that close the result."""
        ...

    @staticmethod
    def failure(reason: str) -> bytes:
        """Return the reason for which the result ends early, in bytes that no reader takes for rows; or nothing."""
        ...


class JsonText:
    media_type = "application/json"
    binary: Collection[int] = ()

    def __init__(self, columns: tuple[ResultColumn, ...]) -> None:
        self._writes = [_json_write(column) for column in columns]
        header = encode([{"name": column.name, "type": column.type} for column in columns])
        self._prefix = b'{"columns":' + header + b',"rows":['  # before the first batch; afterwards empty
        self._separator = b""

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        texts = [_cell_texts(write, cells, b"null") for write, cells in zip(self._writes, columns, strict=True)]
        lines = [b",".join(row) for row in _rows(texts, rows)]
        body = self._separator + b"[" + b"],\n[".join(lines) + b"]" if lines else b""
        text = self._prefix + body
        self._prefix, self._separator = b"", b",\n" if lines else self._separator
        return text

    def end(self) -> bytes:
        return b"]}"

    @staticmethod
    def failure(reason: str) -> bytes:
        return b""  # a text that parsers could take for data


class CsvText:
    media_type = "text/csv; charset=utf-8; header=present"
    binary: Collection[int] = ()

    def __init__(self, columns: tuple[ResultColumn, ...]) -> None:
        self._writes = [_csv_write(column, self._text) for column in columns]
        self._header = b",".join(self._text(column.name.encode()) for column in columns) + b"\r\n"

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        texts = [_cell_texts(write, cells, b"") for write, cells in zip(self._writes, columns, strict=True)]
        text = self._header + b"".join(b",".join(row) + b"\r\n" for row in _rows(texts, rows))
        self._header = b""
        return text

    def end(self) -> bytes:
        return b""

    @staticmethod
    def failure(reason: str) -> bytes:
        return b""

    @staticmethod
    def _text(cell: bytes) -> bytes:
        if cell and not _CSV_SPECIAL.search(cell):
            return cell
        return b'"' + cell.replace(b'"', b'""') + b'"'


class SpreadsheetCsv(CsvText):
    @staticmethod
    def _text(cell: bytes) -> bytes:
        return CsvText._text(b"'" + cell if cell.startswith(_FORMULA_STARTS) else cell)


FORMATS: dict[str, type[ResultWriter]] = {"application/json": JsonText, MEDIA_TYPE: ArrowStream, "text/csv": CsvText}


def writer_for(media_type: str, accept_encoding: str, *, spreadsheet: bool = False) -> type[ResultWriter]:
    """Return the writer of a media type for a client that sends this `Accept-Encoding` header."""
    if media_type == "text/csv" and spreadsheet:
        return SpreadsheetCsv
    if media_type == MEDIA_TYPE and accept_encoding.strip().lower() == "identity":
        return PlainArrowStream
    return FORMATS[media_type]


async def stream(
    result: QueryResult, writer_type: type[ResultWriter], limit: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the bytes of a result, or of its first `limit` rows: at least one piece."""
    writer, written = writer_type(result.columns), 0

    def write(batch: RowBatch) -> bytes:
        columns = result.visible_columns(batch)
        if limit is None or written + batch.rows <= limit:
            return writer.batch(batch.rows, columns)
        return writer.batch(limit - written, [column[: limit - written] for column in columns])

    async for batch in result.batches():
        # Runs in a thread, so that the event loop stays free while Postgres prepares the next batch.
        text = await asyncio.to_thread(write, batch)
        # Yield pieces: the server copies each one, and copying a megabyte to newly mapped pages takes ten times as
        # long.
        for start in range(0, len(text), _PIECE_BYTES):
            yield text[start : start + _PIECE_BYTES]
        written += batch.rows
        if limit is not None and written >= limit:
            break
    yield writer.end()


def _cell_texts(write: WriteCell | None, cells: Cells, null: bytes) -> list[bytes]:
    values = cells.to_pylist()
    if write is None:
        return [null if value is None else value for value in values]
    return [null if value is None else write(value) for value in values]


def _rows(columns: list[list[bytes]], count: int) -> list[tuple[bytes, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count  # SELECT without columns has rows, too


def _json_write(column: ResultColumn) -> WriteCell | None:
    if column.oid in _INTEGERS or column.oid in _JSON:
        return None  # Postgres's text is JSON
    if column.oid in _NUMBERS:
        return lambda cell: cell if cell[-1:].isdigit() else b'"' + cell + b'"'  # NaN and Infinity are not JSON
    if column.oid in ARRAY_OIDS:
        return lambda cell: encode([None if element is None else element.decode() for element in array_elements(cell)])
    if column.oid == _BOOL:
        return lambda cell: b"true" if cell == b"t" else b"false"
    if column.oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return lambda cell: b'"' + _rfc3339(cell) + b'"'
    return lambda cell: encode(cell.decode())


def _csv_write(column: ResultColumn, text: WriteCell) -> WriteCell | None:
    if column.oid in _INTEGERS or column.oid in _NUMBERS:
        return None
    if column.oid == _BOOL:
        return lambda cell: b"true" if cell == b"t" else b"false"
    if column.oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return _rfc3339
    return text


def _rfc3339(cell: bytes) -> bytes:
    """Return `2026-01-02 03:04:05.6+00` as `2026-01-02T03:04:05.6Z`; without a zone no Z is added."""
    date, space, time = cell.partition(b" ")
    if not space or b" " in time:  # infinity, or a date BC: RFC 3339 has no form for them
        return cell
    return date + b"T" + (time.removesuffix(b"+00") + b"Z" if time.endswith(b"+00") else time)
