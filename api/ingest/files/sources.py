"""Which files an import reads, what kind each is, and whose records are in it."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from api.ingest.files.columns import Columns
from api.ingest.files.csv_rows import CsvRows, column_names
from api.ingest.files.lines import LineRows
from api.ingest.files.names import Names
from api.ingest.files.opened import PACKED, opened
from api.ingest.files.parquet_rows import ParquetRows, parquet_file
from api.ingest.files.posthog import from_posthog, is_posthog
from api.ingest.files.row import Record, Rows, UnreadableFileError
from api.ingest.files.segment import from_segment, is_segment
from api.ingest.files.table import Records, Table
from api.language.codec import MalformedJsonError, decode

Dialect = Literal["workbench", "segment", "posthog"]

_LINES, _CSV, _PARQUET = (".ndjson", ".jsonl", ".json"), (".csv", ".tsv"), (".parquet",)
_ENDINGS = _LINES + _CSV + _PARQUET
REFUSED = ".rejected.ndjson"  # the ending of files of refusals
_LOOKED_AT = 20  # lines, for whose records these are
_NOT_EVENTS = ("contacts", "messages", "entries")  # what lies beside `events` in our own exports


class How(msgspec.Struct, frozen=True):
    """How files are read: whose records these are (None: see for yourself), and what columns mean (see `columns`).

    `again`: from the beginning, whatever was done before.
    """

    dialect: Dialect | None = None
    columns: Mapping[str, str] = {}
    again: bool = False


class Source:
    """One file of history."""

    def __init__(self, path: Path, name: str, how: How, names: Names) -> None:
        self.path, self.name, self.again = path, name, how.again
        self.size = path.stat().st_size
        self._how, self._names = how, names
        self._ending = _ending(path)

    @cached_property
    def digest(self) -> str:
        """32 hex digits for the file's bytes and how they are read."""
        said = hashlib.blake2b(
            msgspec.json.encode([self._how.dialect, sorted(self._how.columns.items())]), digest_size=16
        )
        with self.path.open("rb") as file:
            while part := file.read(1 << 20):
                said.update(part)
        return said.hexdigest()

    @cached_property
    def dialect(self) -> Dialect:
        """Whose records these are; raise UnreadableFileError."""
        if self._how.dialect is not None:
            return self._how.dialect
        names = self._first_names()
        if is_segment(names):
            return "segment"
        return "posthog" if is_posthog(names) and "contact" not in names else "workbench"

    @contextmanager
    def opened(self, after: int = 0) -> Iterator[Rows]:
        """Open the file to read what stands behind line `after`; raise UnreadableFileError."""
        mapping = self._mapping()
        if self._ending in _PARQUET:
            with parquet_file(self.path) as parquet:
                yield ParquetRows(self.path.name, parquet, after, partial(self._table, mapping, True))
            return
        with opened(self.path) as file:
            if self._ending in _CSV:
                yield CsvRows(self.path.name, file, after, partial(self._table, mapping, False))
            else:
                yield LineRows(file, after, mapping)

    def _mapping(self) -> Callable[[Record], Record] | None:
        match self.dialect:
            case "segment":
                return partial(from_segment, names=self._names)
            case "posthog":
                return partial(from_posthog, names=self._names)
            case "workbench":
                return None

    def _table(self, mapping: Callable[[Record], Record] | None, typed: bool, names: Sequence[str]) -> Table:
        if mapping is not None:
            return Records(names, mapping)
        return Columns(self.path.name, names, self._how.columns, self._names, typed=typed)

    def _first_names(self) -> set[str]:
        """Return the names of the columns, or of the fields of the first record."""
        if self._ending in _PARQUET:
            with parquet_file(self.path) as parquet:
                return set(parquet.schema_arrow.names)
        with opened(self.path) as file:
            if self._ending in _CSV:
                return set(column_names(file))
            return _fields_of_first(islice(file.lines(), _LOOKED_AT))


def find_sources(paths: Sequence[Path], how: How) -> tuple[list[Source], Names]:
    """Return the files, those of folders in the order of their paths, and the names that reading will change.

    Raises UnreadableFileError for what is not there, is of no known kind, or holds no file.
    """
    names = Names()
    found: dict[Path, Source] = {}
    for path in paths:
        if not path.exists():
            raise UnreadableFileError(f"there is no file {path}")
        for file in _files(path):
            name = file.relative_to(path).as_posix() if path.is_dir() else path.name
            found.setdefault(file, Source(file, name, how, names))
    return list(found.values()), names


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if _ending(path) not in _ENDINGS:
            raise UnreadableFileError(f"{path.name}: {path.suffix or 'no ending'} is not one of {', '.join(_ENDINGS)}")
        return [path]
    events = path / "events"
    inside = events if events.is_dir() and any((path / name).is_dir() for name in _NOT_EVENTS) else path
    files = [each for each in sorted(inside.rglob("*")) if each.is_file() and _is_meant(each.relative_to(inside))]
    if not files:
        raise UnreadableFileError(f"{path}: holds no file ending in one of {', '.join(_ENDINGS)}")
    return files


def _is_meant(path: Path) -> bool:
    """Whether a file of a folder is history: not what was refused, is hidden, or begins with an underscore."""
    return (
        _ending(path) in _ENDINGS
        and not path.name.endswith(REFUSED)
        and not any(part.startswith((".", "_")) for part in path.parts)
    )


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] in PACKED
    return suffixes[-2] if packed else "".join(suffixes[-1:])


def _fields_of_first(lines: Iterator[bytes | None]) -> set[str]:
    """Return the names of the fields of the first line that is a record."""
    for line in lines:
        try:
            record = decode(line or b"")
        except MalformedJsonError:
            continue
        if isinstance(record, dict):
            return set(record)
    return set()
