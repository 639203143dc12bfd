"""SQL over the organization's tables: a query goes to the service, and an Arrow IPC stream comes back as polars frames.

Polars reads only complete streams, and pyarrow would add 170 MB to an installation. So this module splits the stream
into its messages and passes each record batch to polars as soon as it has arrived; a result can be larger than
memory. The format is Arrow's "IPC streaming format" (https://arrow.apache.org/docs/format/Columnar.html). A message
is

    0xFFFFFFFF, size of the metadata (int32), metadata (a flatbuffer `Message`, padded), body

and a stream ends with 0xFFFFFFFF, 0. Of the metadata, this module reads the type of the message and the length of its
body.

The built-in queries are files in `sql/reports`: Jinja2 decides on their structure, values are always bound.
"""

import re
import struct
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from workbench import environment
from workbench.connection import Connection, Response
from workbench.errors import InvalidArgumentError, SqlError, UnknownOutcomeError
from workbench.language.reports import ReportBody
from workbench.language.sql import tokenize

if TYPE_CHECKING:
    import polars as pl

    from workbench.frames import Result

AsOf: TypeAlias = "str | Result | None"
"""An earlier result, or its watermark; "" for now. None is refused, because it is the watermark of a changed frame."""

Params: TypeAlias = Mapping[str, Any] | None
"""Values of the `:name` parameters of a query."""

ARROW = "application/vnd.apache.arrow.stream"


class SqlQuery(msgspec.Struct, frozen=True):
    """One read-only statement, the plain values of its `:name` parameters, and the watermark to read at, if any."""

    text: str
    params: Mapping[str, Any] = {}
    as_of: str | None = None

    def body(self) -> dict[str, Any]:
        as_of = {"asOf": self.as_of} if self.as_of is not None else {}
        return {"sql": self.text} | ({"params": self.params} if self.params else {}) | as_of


def sql(connection: Connection, query: SqlQuery) -> "Result":
    """Return all rows. Raises SqlError with the position that Postgres reports, or if the response is cut short."""
    from workbench.frames import read_result

    with _response(connection, query) as (response, pieces):
        result = read_result(batches(pieces), response.headers)
    result.statement, result.params = query.text, query.params
    return result


def report_rows(connection: Connection, report: ReportBody, query: SqlQuery) -> "Result":
    """Return the rows of a report, as its `query` would; the service may answer it from the parts of events."""
    from workbench.frames import read_result

    body = msgspec.to_builtins(report, builtin_types=())
    with _response(connection, query, f"/reports/{report.name}", body) as (response, pieces):
        result = read_result(batches(pieces), response.headers)
    result.statement, result.params = query.text, query.params
    return result


def built_in(connection: Connection, name: str, values: Mapping[str, Any]) -> "Result":
    """Return all rows of a query in `sql/reports`."""
    return sql(connection, SqlQuery(statement(name), values))


class Stream:
    """A query that runs each time its rows are read: by a loop, `.frames()` or `.to_parquet(path)`.

    Leaving a loop early ends the query on the server. SqlError may be raised after some rows; these are then not all
    rows.
    """

    def __init__(self, connection: Connection, query: SqlQuery) -> None:
        self._connection = connection
        self._query = query

    def __iter__(self) -> Iterator["Result"]:
        return self.frames()

    def frames(self) -> Generator["Result"]:
        """Yield the rows in frames of a few thousand rows. A query without rows yields one frame with its columns."""
        from workbench.frames import read_result

        with _response(self._connection, self._query) as (response, pieces):
            for batch in batches(pieces):
                yield read_result([batch], response.headers)

    def to_parquet(self, path: str | Path) -> Path:
        """Write all rows to a parquet file and return its path; it replaces an existing file when it is complete."""
        with closing(self.frames()) as frames:
            return write_parquet(frames, Path(path))

    def __repr__(self) -> str:
        return "A query that runs when its rows are read: for frame in …, .frames() or .to_parquet(path)"


@contextmanager
def _response(
    connection: Connection, query: SqlQuery, path: str = "/sql", body: Mapping[str, Any] | None = None
) -> Iterator[tuple[Response, Iterator[bytes]]]:
    """Provide the pieces of an Arrow stream. Raises SqlError for a rejected query and if the stream is cut short."""
    started = False
    try:
        with connection.stream_bytes(path, query.body() if body is None else body, ARROW) as (response, pieces):
            if response.status in (400, 408):
                raise sql_error(query.text, response)
            connection.check(response)
            started = True
            yield response, pieces
    except (UnknownOutcomeError, CutShortError) as error:
        # Before the response started, the connection's own error says more.
        if not started:
            raise
        reason = str(error) if isinstance(error, CutShortError) and str(error) else "the connection was lost"
        raise SqlError(f"The response was cut short, so rows are missing: {reason}") from None


def sql_error(query: str, response: Response) -> SqlError:
    """Return the SqlError for a rejected query: Postgres's message, the line with a caret below it, a hint."""
    body = response.body if isinstance(response.body, dict) else {}
    position = body.get("position")
    position = position if isinstance(position, int) and 0 < position <= len(query) + 1 else None
    parts = [response.error.removeprefix("sql: ")]
    if position is not None:
        before, after = query[: position - 1], query[position - 1 :]
        number = before.count("\n") + 1
        label = f"line {number}: "
        start = before.rpartition("\n")[2]
        line = start + after.partition("\n")[0]
        parts += ["", label + line.replace("\t", " "), " " * (len(label) + len(start)) + "^"]
    # Comments and parentheses may precede the first word.
    first_word = re.match(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w*)", query, re.DOTALL)
    if "multiple commands" in response.error:
        parts.append("Only one statement is allowed: call wb.sql once for each.")
    elif first_word is not None and first_word[1] and first_word[1].lower() not in _READ_STATEMENTS:
        parts.append("Only SELECT is allowed (SELECT …, or WITH … SELECT …): a query cannot change anything.")
    if body.get("hint"):
        parts.append(f"Hint: {body['hint']}")
    error = SqlError("\n".join(parts), response.problems, status=response.status, request_id=response.request_id)
    error.position, error.sqlstate = position, body.get("sqlstate")
    return error


_READ_STATEMENTS = ("select", "with", "values", "table")


def statement(name: str, **structure: Any) -> str:
    """Return the text of a query in `sql/reports`."""
    return _templates().get_template(f"{name}.sql").render(**structure).strip()


@cache
def _templates() -> Environment:
    package = Path(__file__).parent
    installed = package / "_reports"
    folder = installed if installed.is_dir() else package.parent / "sql" / "reports"  # in a checkout
    return Environment(  # noqa: S701  SQL: values are bound, never written into it
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def watermark(as_of: AsOf) -> str | None:
    """Return the watermark of `as_of`, a result or a watermark; None for "", the default.

    Raises InvalidArgumentError for anything else, and for a frame without a watermark.
    """
    mark = as_of if isinstance(as_of, str) else getattr(as_of, "watermark", None)
    if not isinstance(mark, str):
        raise InvalidArgumentError(
            "as_of takes a result of wb.sql, or its .watermark. A frame derived from a result has no watermark, "
            "nor has a result from Citus"
        )
    return mark or None


def parameter_names(query: str) -> list[str]:
    """Return the `:name` parameters of a query, in order."""
    return [token.text[1:] for token in tokenize(query) if token.kind == "name"]


def bind_values(query: str, keywords: Mapping[str, Any], params: object, options: Collection[str]) -> dict[str, Any]:
    """Return the values of a query as plain Python values. `options`: the caller's own parameter names."""
    if params is not None and not isinstance(params, Mapping):
        raise InvalidArgumentError('params= takes a mapping of names to values: params={"name": …}')
    by_name = dict(params or {})
    if twice := next((name for name in keywords if name in by_name), None):
        raise InvalidArgumentError(f":{twice} has two values, one as a keyword and one in params=. Pass only one")
    if clash := next((name for name in parameter_names(query) if name in options and name not in by_name), None):
        raise InvalidArgumentError(
            f'{clash}= is a parameter of the method itself: pass the value of :{clash} as params={{"{clash}": …}}'
        )
    return {name: plain_value(value) for name, value in (by_name | dict(keywords)).items()}


def plain_value(value: Any) -> Any:
    """Return a value as plain Python: columns and arrays as lists, numpy numbers as numbers."""
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain_value(item) for name, item in value.items()}
    convert = getattr(value, "to_list", None) or getattr(value, "tolist", None)
    return value if convert is None else convert()


END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_RECORD_BATCH = 3  # in the union MessageHeader of Message.fbs
_HEADER_TYPE, _BODY_LENGTH = 1, 3  # field numbers in the table Message


class CutShortError(Exception):
    """The stream ended without its end mark, so rows may be missing. The message is the server's reason, or empty."""


def batches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each record batch as a complete stream, or one stream without rows. At most one batch is in memory.

    `pieces` are the bytes of the stream, split anywhere. Raises CutShortError.
    """
    head, empty = b"", True  # `head`: the schema and dictionaries, which polars needs with every batch
    reader = _PieceReader(pieces)
    while (prefix := b"".join(reader.take(8))) != END:
        mark, size = struct.unpack("<Ii", prefix)
        if mark != 0xFFFFFFFF or size < 0:
            raise CutShortError(b"".join(reader.take(-size)).decode() if mark == 0xFFFFFFFF else "")
        metadata = b"".join(reader.take(size))
        body = reader.take(_root_field(metadata, _BODY_LENGTH, "<q"))
        if _root_field(metadata, _HEADER_TYPE, "<B") == _RECORD_BATCH:
            empty = False
            yield b"".join([head, prefix, metadata, *body, END])
        else:
            head = b"".join([head, prefix, metadata, *body])
    if empty:
        yield head + END


def _root_field(metadata: bytes, number: int, form: str) -> int:
    """Return a number in the flatbuffer's root table; 0, the default, if the table leaves it out."""
    (table,) = struct.unpack_from("<I", metadata, 0)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    (length,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < length else 0
    return int(struct.unpack_from(form, metadata, table + offset)[0]) if offset else 0


class _PieceReader:
    """Reads a number of bytes from pieces of any length, without copying them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def take(self, length: int) -> list[memoryview]:
        """Return the next `length` bytes, in pieces; raises CutShortError if there are fewer."""
        taken: list[memoryview] = []
        while length > 0:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    raise CutShortError
                self._rest = memoryview(piece)
            taken.append(self._rest[:length])
            self._rest = self._rest[length:]
            length -= len(taken[-1])
        return taken


_ROW_GROUP_ROWS = 16_384  # held in memory together; with polars' default, rows of 1 KB took 180 MB more


def write_parquet(frames: Iterator["pl.DataFrame"], target: Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write one or more frames of one schema as they arrive, with `metadata` in the file; return the path.

    An existing file is replaced when the new one is complete. An interrupt leaves no unfinished file.
    """
    unfinished = target.with_name(f".{target.name}.{environment.new_uuid()}")
    interrupted = Event()
    remaining = takewhile(lambda _frame: not interrupted.is_set(), frames)
    try:
        # Polars' own threads continue to write when the main thread is interrupted. The writer thread stops at the next
        # frame, and the executor waits for it, so nothing writes to the unfinished file after it is deleted.
        with ThreadPoolExecutor(1) as writer:
            try:
                writer.submit(_sink, remaining, unfinished, dict(metadata or {})).result()
            except KeyboardInterrupt:
                interrupted.set()
                raise
        return unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _sink(frames: Iterator["pl.DataFrame"], path: Path, metadata: dict[str, str]) -> None:
    from polars.io.plugins import register_io_source

    first = next(frames)

    def rows(*_pushed_down: Any) -> Iterator["pl.DataFrame"]:
        yield first
        yield from frames

    scanned = register_io_source(rows, schema=first.schema)
    scanned.sink_parquet(path, row_group_size=_ROW_GROUP_ROWS, metadata=metadata)
