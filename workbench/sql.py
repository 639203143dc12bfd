"""SQL over the organization's tables: a query goes to the service, and an Arrow IPC stream comes back as polars frames.

The stream is cut at its messages, so that each batch can be read as soon as it has arrived and a result can be larger than memory.
Format: Arrow columnar format, "Encapsulated message format" and "IPC streaming format"
(https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc). A message is

    0xFFFFFFFF, size of the metadata (int32), metadata (a flatbuffer `Message`, padded), body

and a stream ends with 0xFFFFFFFF, 0. Only two fields of the metadata are read here: the type of the message and the length of its
body. Polars reads the rest.

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
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from workbench import environment
from workbench.connection import Connection, Response
from workbench.errors import InvalidArgumentError, SqlError, UnknownOutcomeError
from workbench.language.sql import tokenize

if TYPE_CHECKING:
    import polars as pl

    from workbench.frames import Result

ARROW = "application/vnd.apache.arrow.stream"


class SqlQuery(msgspec.Struct, frozen=True):
    """One read-only statement, the plain values of its `:name`s, and the watermark that it reads as of, if any."""

    text: str
    params: Mapping[str, Any] = {}
    as_of: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the request body."""
        as_of = {"asOf": self.as_of} if self.as_of is not None else {}
        return {"sql": self.text} | ({"params": self.params} if self.params else {}) | as_of


def sql(connection: Connection, query: SqlQuery) -> "Result":
    """Return all rows; raises SqlError pointing at the position that Postgres reports."""
    from workbench.frames import Origin, read_result

    with _response(connection, query) as (response, pieces):
        return read_result(batches(pieces), response.headers, Origin(query.text, query.params))


def built_in(connection: Connection, name: str, values: Mapping[str, Any]) -> "Result":
    """Return all rows of a query in `sql/reports`; raises what `sql` raises."""
    return sql(connection, SqlQuery(statement(name), values))


class Stream:
    """A query that runs when its rows are read, each time anew: by a loop, `.frames()` or `.to_parquet(path)`.

    Leaving a loop early ends the query on the server. Raises SqlError, also in the middle: the rows before it are then incomplete.
    """

    def __init__(self, connection: Connection, query: SqlQuery) -> None:
        self._connection = connection
        self._query = query

    def __iter__(self) -> Iterator["Result"]:
        return self.frames()

    def frames(self) -> Generator["Result"]:
        """Yield the rows in frames of up to some thousand rows; at least one frame, which has all columns."""
        from workbench.frames import read_result

        with _response(self._connection, self._query) as (response, pieces):
            for batch in batches(pieces):
                yield read_result([batch], response.headers)

    def to_parquet(self, path: str | Path) -> Path:
        """Write all rows to a parquet file and return its path. An existing file is replaced when the new one is complete."""
        with closing(self.frames()) as frames:
            return write_parquet(frames, Path(path))

    def __repr__(self) -> str:
        return "A query that runs when its rows are read: for frame in …, .frames(), .to_parquet(path)"


@contextmanager
def _response(connection: Connection, query: SqlQuery) -> Iterator[tuple[Response, Iterator[bytes]]]:
    """Give the pieces of an Arrow stream; leaving the block ends the query. Raises SqlError, also when the stream breaks off."""
    started = False
    try:
        with connection.stream_bytes("/sql", query.body(), ARROW) as (response, pieces):
            if response.status == 400:
                raise sql_error(query.text, response)
            connection.check(response)
            started = True
            yield response, pieces
    except (UnknownOutcomeError, CutShortError):
        if not started:
            raise
        raise SqlError(
            "the answer broke off, so rows are missing: one of the later ones failed (a division by zero, a value that Arrow "
            "cannot represent), it took longer than a query may, or the connection was lost"
        ) from None


def sql_error(query: str, response: Response) -> SqlError:
    """Return the service's error about a query, with a caret at its position."""
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
    first_word = re.match(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w*)", query, re.DOTALL)
    if "multiple commands" in response.error:
        parts.append("One statement at a time: call wb.sql once for each.")
    elif first_word is not None and first_word[1] and first_word[1].lower() not in _READ_STATEMENTS:
        parts.append("Only SELECT: queries read and change nothing (SELECT …, or WITH … SELECT …).")
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


def watermark(as_of: "str | Result | None") -> str | None:
    """Return the watermark that `as_of` names: itself, or that of a result; None for "" (not given).

    A None raises InvalidArgumentError: it comes from the `.watermark` of a frame that was changed since, and must not silently mean now.
    """
    mark = as_of if isinstance(as_of, str) else getattr(as_of, "watermark", None)
    if not isinstance(mark, str):
        raise InvalidArgumentError(
            "as_of takes a result of wb.sql, or its .watermark. A frame made from a result has none, nor has a result from Citus"
        )
    return mark or None


def parameter_names(query: str) -> list[str]:
    """Return the `:name`s of a query, in order."""
    return [token.text[1:] for token in tokenize(query) if token.kind == "name"]


def bind_values(query: str, keywords: Mapping[str, Any], params: object, options: Collection[str]) -> dict[str, Any]:
    """Return the values of a query as plain Python values. `options` are the names of the call's own parameters."""
    if params is not None and not isinstance(params, Mapping):
        raise InvalidArgumentError('params= takes values by name: params={"name": …}')
    by_name = dict(params or {})
    if twice := next((name for name in keywords if name in by_name), None):
        raise InvalidArgumentError(f":{twice} has two values: one as a keyword, and one in params=")
    if clash := next((name for name in parameter_names(query) if name in options and name not in by_name), None):
        raise InvalidArgumentError(
            f'the keyword {clash} means something else here: pass the value of :{clash} as params={{"{clash}": …}}'
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
    """The stream ended before its end mark, so rows may be missing."""


def batches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each record batch as a stream of its own, or one stream without rows; raises CutShortError.

    `pieces` are the bytes of the stream, cut anywhere. At most one batch is held in memory.
    """
    head, empty = b"", True  # the schema, and dictionaries if there are any
    reader = _PieceReader(pieces)
    while (prefix := b"".join(reader.take(8))) != END:
        mark, size = struct.unpack("<Ii", prefix)
        if mark != 0xFFFFFFFF or size < 0:
            raise CutShortError
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
    """Return a number in the flatbuffer's root table, 0 where it is left out."""
    (table,) = struct.unpack_from("<I", metadata, 0)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    (length,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < length else 0
    return int(struct.unpack_from(form, metadata, table + offset)[0]) if offset else 0


class _PieceReader:
    """Reads given lengths from bytes that arrive in pieces, without copying them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def take(self, length: int) -> list[memoryview]:
        """Return the next `length` bytes, in pieces; raises CutShortError when there are fewer."""
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


# Rows that are encoded together, so held in memory: with polars's default, rows of 1 KB took 180 MB more.
_ROW_GROUP_ROWS = 16_384


def write_parquet(frames: Iterator["pl.DataFrame"], target: Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write frames of one schema, at least one, as they arrive. An existing file is replaced when the new one is complete.

    `metadata` is stored in the file. When it is interrupted, it leaves nothing behind.
    """
    unfinished = target.with_name(f".{target.name}.{environment.new_uuid()}")
    interrupted = Event()
    remaining = takewhile(lambda _frame: not interrupted.is_set(), frames)
    try:
        # An interrupt in the main thread does not stop polars from writing. In a thread of its own it can be waited for.
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
