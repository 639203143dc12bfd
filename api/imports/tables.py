"""Tables: CSV and parquet files, and the meaning of their columns.

A column is named after the field it fills: `event`, `contact.email`, `contact.walletAddress`, `contact.externalId`,
`attributes.plan`, `payload.amountUsd`, `payload.address.city`, `idempotencyKey`, `occurredAt`; or, as in our own
exports, `email`, `wallet_address`, `external_id`, `occurred_at`, `idempotency_key`, and `payload` and `attributes` as
JSON objects. Other columns need a mapping: `amount=payload.amountUsd`, `zip=payload.zip:text`, `internal=` (dropped).

In CSV an empty cell has no value. Under `attributes` and `payload` a cell that is exactly a JSON number, `true` or
`false` becomes that value, and any other cell text. `:text`, `:number`, `:boolean`, `:json`, and for times `:seconds`
and `:milliseconds`, override this.

CSV is RFC 4180 with a header, separated by commas, semicolons or tabs; a row has the number of the line on which it
ends. Rows of parquet are numbered from 1; times without a zone are UTC.
"""

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from api.imports.row import (
    MAX_LINE_BYTES,
    EventNames,
    LineFile,
    Record,
    Row,
    TableRow,
    UnreadableFileError,
    contract_time,
)
from workbench.language.codec import decode, encode, malformed_json
from workbench.language.problem import Problem

# Returns the value of a cell, or None if it has none; raises ValueError with the reason.
Convert = Callable[[Any], Any]

_FIELDS = {
    "event": ("event",),
    "contact.email": ("contact", "email"),
    "contact.walletAddress": ("contact", "walletAddress"),
    "contact.externalId": ("contact", "externalId"),
    "idempotencyKey": ("idempotencyKey",),
    "occurredAt": ("occurredAt",),
    "payload": ("payload",),
    "attributes": ("attributes",),
}
_ALIASES = {
    "email": "contact.email",
    "wallet_address": "contact.walletAddress",
    "external_id": "contact.externalId",
    "occurred_at": "occurredAt",
    "idempotency_key": "idempotencyKey",
}
_EXPORT_COLUMNS = frozenset(("id", "contact_id", "created_at"))
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TYPES = ("text", "number", "boolean", "json", "seconds", "milliseconds")
_BOOLEANS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}

_MAX_LINES_PER_ROW = 1_000  # a quoted cell with more lines is an error, reported at its first line
_PARQUET_BATCH_ROWS = 2_000

_Column = tuple[int, tuple[str, ...], Convert]  # the index, the path of the cells in an event, how a cell is read


class Columns:
    """The columns of a table of events. `typed`: cells have types, as in parquet; otherwise they are texts.

    Raises UnreadableFileError for a column without a meaning, or if no column is the event name.
    """

    def __init__(
        self, file: str, names: Sequence[str], mapping: Mapping[str, str], event_names: EventNames, *, typed: bool
    ) -> None:
        self._event_names = event_names
        self._columns: list[_Column] = []
        ignored = _EXPORT_COLUMNS if {"occurred_at", *_EXPORT_COLUMNS} <= set(names) else frozenset[str]()
        unknown: list[str] = []
        for index, name in enumerate(names):
            target = mapping.get(name, _ALIASES.get(name, name))
            if name not in mapping and not (target in _FIELDS or target.startswith(("payload.", "attributes."))):
                unknown += [] if name in ignored else [name]
            elif target:
                path, convert = _read_target(target, typed)
                self._columns.append((index, path, convert))

        if missing := [name for name in mapping if name not in names]:
            raise UnreadableFileError(f"{file}: has no column named {missing[0]}; its columns are {', '.join(names)}")
        if unknown:
            name, *others = unknown
            raise UnreadableFileError(
                f"{file}: column {name!r} has no known meaning"
                + (f" (nor have {', '.join(map(repr, others))})" if others else "")
                + f"; map it to a field, like --map '{name}=payload.{name}', or leave it out with --map '{name}='"
            )
        paths = [path for _, path, _ in self._columns]
        if ("event",) not in paths:
            raise UnreadableFileError(
                f"{file}: has no column named event; map the column with the names: --map NAME=event"
            )
        for path in paths:
            if overlapping := [other for other in paths if other[: len(path)] == path][1:]:
                raise UnreadableFileError(
                    f"{file}: two columns go to {'.'.join(path)} ({'.'.join(overlapping[0])}); leave one of them out"
                )

    def row(self, line: int, cells: Sequence[Any]) -> Row:
        event: Record = {"contact": {}}
        problems: list[Problem] = []
        for index, path, convert in self._columns:
            cell = cells[index]
            try:
                value = convert(cell)
            except (ValueError, ArithmeticError, RecursionError, OSError) as error:
                problems.append(Problem(".".join(path), str(error)))
                value = str(cell)
            if value is None:
                continue
            parent = event
            for step in path[:-1]:
                parent = parent.setdefault(step, {})
            parent[path[-1]] = value
        event["event"] = self._event_names.normalize(event.get("event"))
        return line, encode(event), tuple(problems)


def _read_target(target: str, typed: bool) -> tuple[tuple[str, ...], Convert]:
    """Return the path of a column's cells in an event and how they are read; raise UnreadableFileError."""
    field, _, kind = target.partition(":")
    field = _ALIASES.get(field, field)
    path = _FIELDS.get(field)
    head, _, rest = field.partition(".")
    if path is None and rest and head in ("payload", "attributes"):
        # Attributes are flat; a payload may be nested.
        path = (head, rest) if head == "attributes" else (head, *rest.split("."))
    if path is None or (kind and kind not in _TYPES):
        raise UnreadableFileError(
            f"--map: {target!r} is not a field of an event. Use {', '.join(_FIELDS)}, payload.NAME or attributes.NAME, "
            f"optionally followed by :{', :'.join(_TYPES)}"
        )
    if kind:
        return path, _unless_empty(_CONVERSIONS[kind])
    if len(path) == 1 and path[0] in ("payload", "attributes"):
        return path, _unless_empty(_json)
    if path[0] in ("payload", "attributes"):
        return path, _value if typed else _unless_empty(_guess_value)
    return path, _unless_empty(_time if path == ("occurredAt",) else _text)


def _unless_empty(convert: Convert) -> Convert:
    return lambda cell: None if cell is None or cell == "" else convert(cell)


def _value(cell: Any) -> Any:
    # Infinity and NaN, which JSON does not have, become None; 1e400 is infinite as a float.
    if isinstance(cell, float | Decimal) and not -1e400 < cell < 1e400:
        return None
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=cell.tzinfo or UTC)
    if isinstance(cell, bytes):
        return cell.decode()
    return cell


def _guess_value(cell: str) -> Any:
    if cell in ("true", "false"):
        return cell == "true"
    return decode(cell.encode()) if _NUMBER.fullmatch(cell) else cell


def _text(cell: Any) -> Any:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _number(cell: Any) -> Any:
    if not isinstance(cell, str):
        return _value(cell)
    if not _NUMBER.fullmatch(cell):
        raise ValueError("is not a number")
    return decode(cell.encode())


def _boolean(cell: Any) -> bool:
    if isinstance(cell, bool):
        return cell
    value = _BOOLEANS.get(str(cell).lower())
    if value is None:
        raise ValueError("is not true or false")
    return value


def _json(cell: Any) -> Any:
    """Return JSON text to be embedded unchanged; raise ValueError unless it is exactly one JSON value."""
    if not isinstance(cell, str | bytes):
        return _value(cell)
    try:
        return msgspec.json.decode(cell, type=msgspec.Raw)
    except ValueError as error:
        raise ValueError(malformed_json(error)) from None


def _time(cell: Any) -> Any:
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return contract_time(cell.isoformat())
    return contract_time(_value(cell))


def _epoch(factor: int) -> Convert:
    def convert(cell: Any) -> Any:
        microseconds = int(Decimal(str(cell)) * factor)
        return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)

    return convert


_CONVERSIONS: dict[str, Convert] = {
    "text": _text,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
    "seconds": _epoch(1_000_000),
    "milliseconds": _epoch(1_000),
}


def csv_rows(name: str, file: LineFile, after: int, layout: Callable[[Sequence[str]], TableRow]) -> Iterator[Row]:
    """Return the rows of a CSV file after line `after`. `layout` is called with the names in the header."""
    lines = _Lines(file.lines())
    names, delimiter = _header(next(lines, ""))
    if not names:
        raise UnreadableFileError(f"{name}: is empty; the first line of a CSV file must contain the column names")
    table_row = layout(names)

    def rows() -> Iterator[Row]:
        lines.skip(after)
        while True:
            try:
                for cells in csv.reader(lines, delimiter=delimiter, strict=True):
                    problem = lines.problem
                    if problem is None and cells and len(cells) != len(names):
                        problem = Problem("", f"has {len(cells)} cells, the header has {len(names)}")
                    text = lines.take()
                    if problem is not None:
                        yield lines.number, text, (problem,)
                    elif cells:
                        yield table_row(lines.number, cells)
            except csv.Error as error:
                yield lines.reject_one(str(error))
            else:
                return

    return rows()


def column_names(file: LineFile) -> list[str]:
    return _header(next(_Lines(file.lines()), ""))[0]


def _header(line: str) -> tuple[list[str], str]:
    """Return the names of the columns and the delimiter."""
    # Excel begins UTF-8 files with a byte order mark.
    line = line.removeprefix("\ufeff").rstrip("\r\n")
    delimiter = max(",;\t", key=line.count)
    return next(csv.reader([line], delimiter=delimiter), []), delimiter


class _Lines:
    """Lines as text. Lines since the last `take` can be read again, because an unclosed quote swallows many rows.

    `problem` is set if one of them cannot be text.
    """

    def __init__(self, lines: Iterator[bytes | None]) -> None:
        self._lines = lines
        self._unread: deque[bytes] = deque()
        self._read: list[bytes] = []
        self.number = 0
        self.problem: Problem | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self._read) > _MAX_LINES_PER_ROW:
            raise csv.Error("a quote is not closed")
        line = self._unread.popleft() if self._unread else next(self._lines)
        self.number += 1
        if line is None:
            self.problem = Problem("", f"is longer than {MAX_LINE_BYTES} bytes")
            return "\n"
        self._read.append(line)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.problem = Problem("", f"is not UTF-8: {error.reason} at byte {error.start + 1}")
            return line.decode(errors="replace")

    def take(self) -> bytes:
        """Return and forget the lines read since the last call."""
        text = b"".join(self._read).rstrip(b"\r\n")
        self._read.clear()
        self.problem = None
        return text

    def skip(self, after: int) -> None:
        while self.number < after and next(self._lines, b"") != b"":
            self.number += 1
        self.take()

    def reject_one(self, reason: str) -> Row:
        """Return the first of the lines read as a rejected row; the others will be read again."""
        first, *others = self._read
        self._unread.extendleft(reversed(others))
        self.number -= len(others)
        self._read.clear()
        self.problem = None
        return self.number, first.rstrip(b"\r\n"), (Problem("", f"is not a row of CSV: {reason}"),)


def parquet_rows(name: str, file: pq.ParquetFile, after: int, table_row: TableRow) -> Iterator[Row]:
    """Yield the rows of a parquet file after the first `after`. Row groups that end before that are not read."""
    metadata, group, before = file.metadata, 0, 0
    try:
        while group < metadata.num_row_groups and before + metadata.row_group(group).num_rows <= after:
            before += metadata.row_group(group).num_rows
            group += 1
        row_groups = range(group, metadata.num_row_groups)
        for batch in file.iter_batches(_PARQUET_BATCH_ROWS, row_groups=row_groups):
            stored = min(max(after - before, 0), batch.num_rows)
            columns = [_as_python(column).to_pylist() for column in batch.slice(stored).columns]
            first, before = before + stored + 1, before + batch.num_rows
            yield from map(table_row, range(first, before + 1), zip(*columns, strict=True))
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"{name}: {error}") from error


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a parquet file; raise UnreadableFileError."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"{path.name}: {error}") from error


def _as_python(column: pa.Array) -> pa.Array:
    # Times become texts in microseconds UTC: Python datetimes take ten times as long, and fail on nanoseconds.
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.string())
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column
