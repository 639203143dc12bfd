"""Rows of files, and helpers that all formats share: times, event names, reading and decompressing lines."""

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from workbench.language.codec import MalformedJsonError, decode, encode
from workbench.language.event import EVENT_NAME
from workbench.language.problem import Problems

COMPRESSED_SUFFIXES = (".gz", ".zst")
MAX_LINE_BYTES = 1_048_576  # the largest valid event is far smaller
MAX_LISTED_NAMES = 100

_TIME = re.compile(
    r"(\d{4}-?\d\d-?\d\d)(?:[Tt ](\d\d:?\d\d(?::?\d\d(?:[.,]\d+)?)?))?\s?(?:[Zz]|UTC|([+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_.:-]+")

Record = dict[str, Any]  # the fields or columns of a row by name

Row = tuple[int, bytes, Problems]
"""The number of a line, from 1, and its event as JSON text. With problems, the text is the row as it was found."""


class UnreadableFileError(Exception):
    """A file as a whole cannot be read; the text has the reason."""


class Rows(NamedTuple):
    """The rows of an open file; iterating raises UnreadableFileError, also midway.

    `share`: from the number of the last line that was taken, how much of the file has been read, from 0 to 1.
    """

    rows: Iterator[Row]
    share: Callable[[int], float]


TableRow = Callable[[int, Sequence[Any]], Row]
"""Makes a row from the number of a line and the cells of a table."""


def vendor_row(names: Sequence[str], mapping: Callable[[Record], Record], line: int, cells: Sequence[Any]) -> Row:
    """Return the row of a record of another system. Text cells that are JSON objects become objects."""
    record = {name: _cell(cell) for name, cell in zip(names, cells, strict=True) if cell not in (None, "")}
    return line, encode(mapping(record)), ()


def _cell(cell: Any) -> Any:
    if isinstance(cell, bytes):
        cell = cell.decode(errors="replace")
    if hasattr(cell, "isoformat"):
        return cell.isoformat()
    if isinstance(cell, str) and cell.startswith("{"):
        try:
            return decode(cell.encode())
        except MalformedJsonError:
            return cell
    return cell


def contract_time(value: object) -> object:
    """Return the time of an event for a date with or without time and zone. The defaults are midnight and UTC.

    Any other value is returned unchanged: the parser of events (`parse_timestamp`) reads it or rejects it.
    """
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    day, time, offset = match.groups()
    return f"{day}T{time or '00:00'}{offset or 'Z'}"


class EventNames:
    """Event names that other systems allow and the contract does not: `Order Completed` becomes `order_completed`.

    `changed`: the first hundred changes of this import.
    """

    def __init__(self) -> None:
        self.changed: dict[str, str] = {}

    def normalize(self, name: object) -> object:
        """Return a valid name, or the value unchanged: the parser of events then rejects it with a reason."""
        if not isinstance(name, str) or EVENT_NAME.fullmatch(name):
            return name
        normal = _NOT_IN_NAMES.sub("_", name.lower()).strip("_")
        if not EVENT_NAME.fullmatch(normal):
            return name
        if len(self.changed) < MAX_LISTED_NAMES:
            self.changed[name] = normal
        return normal


class LineFile:
    """An open file that is read line by line, decompressed by its suffix."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        self._size = max(path.stat().st_size, 1)
        match path.suffix.lower():
            case ".gz":
                self._file = cast("BinaryIO", gzip.GzipFile(fileobj=raw))
            case ".zst":
                # BufferedReader, because pyarrow's streams do not implement readline().
                decompressed = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
                self._file = cast("BinaryIO", io.BufferedReader(decompressed, 1 << 18))
            case _:
                self._file = raw

    def share(self, _: int) -> float:
        """Return how much of the file on disk has been read, from 0 to 1."""
        return min(self._raw.tell() / self._size, 1.0)

    def lines(self) -> Iterator[bytes | None]:
        """Yield lines with their line endings, or None for a line over MAX_LINE_BYTES."""
        readline = self._file.readline
        try:
            while line := readline(MAX_LINE_BYTES):
                if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
                    yield line
                    continue
                # The rest of a long line is skipped in parts: whole, it could take all of the memory.
                while line and not line.endswith(b"\n"):
                    line = readline(MAX_LINE_BYTES)
                yield None
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise UnreadableFileError(f"{self._path.name}: {error}") from error


@contextmanager
def open_lines(path: Path) -> Iterator[LineFile]:
    """Open a file for reading; raise UnreadableFileError."""
    try:
        with path.open("rb") as raw:
            yield LineFile(path, raw)
    except OSError as error:
        raise UnreadableFileError(f"{path.name}: {error.strerror or error}") from error
