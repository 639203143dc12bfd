"""Answers as JSON (`{"columns": […], "rows": [[…], …]}`) and as CSV, streamed, every number with all its digits.

JSON: moments in RFC 3339 with Z, jsonb as JSON, arrays of text as arrays, NaN and infinities as strings (as Postgres's own
to_json does). CSV (RFC 4180): null is nothing at all, an empty string is `""`.
"""

import re
from collections.abc import Callable, Collection

from api.language.codec import encode
from api.query.arrays import elements
from api.query.arrow import LISTS
from api.query.run import Cells, Column

Write = Callable[[bytes], bytes]

_INTEGERS = frozenset({20, 21, 23, 26})
_NUMBERS = frozenset({700, 701, 1700})
_BOOL, _TIMESTAMP, _TIMESTAMPTZ = 16, 1114, 1184
_JSON = frozenset({114, 3802})
_SPECIAL = re.compile(rb'[",\r\n]')


class JsonText:
    """Writes one JSON answer: `batch` for each batch, then `end`."""

    media_type = "application/json"
    binary: Collection[int] = ()

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._writes = [_json_write(column) for column in columns]
        described = encode([{"name": column.name, "type": column.type} for column in columns])
        self._before = b'{"columns":' + described + b',"rows":['
        self._between = b""

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the text of some rows, given by column."""
        written = [_written(write, cells, b"null") for write, cells in zip(self._writes, columns, strict=True)]
        lines = [b",".join(row) for row in _rows(written, rows)]
        body = self._between + b"[" + b"],\n[".join(lines) + b"]" if lines else b""
        text = self._before + body
        self._before, self._between = b"", b",\n" if lines else self._between
        return text

    def end(self) -> bytes:
        """Return what closes the text."""
        return b"]}"


class CsvText:
    """Writes one CSV answer: `batch` for each batch, then `end`."""

    media_type = "text/csv; charset=utf-8; header=present"
    binary: Collection[int] = ()

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._writes = [_csv_write(column) for column in columns]
        self._before = b",".join(_quoted(column.name.encode()) for column in columns) + b"\r\n"

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the lines of some rows, given by column."""
        written = [_written(write, cells, b"") for write, cells in zip(self._writes, columns, strict=True)]
        text = self._before + b"".join(b",".join(row) + b"\r\n" for row in _rows(written, rows))
        self._before = b""
        return text

    def end(self) -> bytes:
        """Return what closes the text."""
        return b""


def _written(write: Write | None, cells: Cells, null: bytes) -> list[bytes]:
    texts = cells.to_pylist()
    if write is None:
        return [null if cell is None else cell for cell in texts]
    return [null if cell is None else write(cell) for cell in texts]


def _rows(columns: list[list[bytes]], count: int) -> list[tuple[bytes, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _json_write(column: Column) -> Write | None:
    if column.oid in _INTEGERS or column.oid in _JSON:
        return None
    if column.oid in _NUMBERS:
        return _json_number
    if column.oid in LISTS:
        return _json_list
    if column.oid == _BOOL:
        return lambda cell: b"true" if cell == b"t" else b"false"
    if column.oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return lambda cell: b'"' + _moment(cell) + b'"'
    return lambda cell: encode(cell.decode())


def _csv_write(column: Column) -> Write | None:
    if column.oid in _INTEGERS or column.oid in _NUMBERS:
        return None
    if column.oid == _BOOL:
        return lambda cell: b"true" if cell == b"t" else b"false"
    if column.oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return _moment
    return _quoted


def _json_number(cell: bytes) -> bytes:
    return cell if cell[-1:].isdigit() else b'"' + cell + b'"'


def _json_list(cell: bytes) -> bytes:
    return encode([None if each is None else each.decode() for each in elements(cell)])


def _moment(cell: bytes) -> bytes:
    """Return RFC 3339 for `2026-01-02 03:04:05.6+00` (without zone: without Z); what is no such moment stays as it is."""
    date, space, time = cell.partition(b" ")
    if not space or b" " in time:  # infinity, or before Christ
        return cell
    return date + b"T" + (time.removesuffix(b"+00") + b"Z" if time.endswith(b"+00") else time)


def _quoted(cell: bytes) -> bytes:
    if cell and not _SPECIAL.search(cell):
        return cell
    return b'"' + cell.replace(b'"', b'""') + b'"'
