"""The files that an import reads: find them, and detect their formats and the systems that wrote them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from api.imports.row import (
    COMPRESSED_SUFFIXES,
    EventNames,
    Record,
    Rows,
    TableRow,
    UnreadableFileError,
    open_lines,
    vendor_row,
)
from api.imports.tables import Columns, column_names, csv_rows, open_parquet, parquet_rows
from api.imports.vendors import from_posthog, from_segment, is_posthog, is_segment, line_rows
from workbench.language.codec import MalformedJsonError, decode

Dialect = Literal["workbench", "segment", "posthog"]

_LINES, _CSV, _PARQUET = (".ndjson", ".jsonl", ".json"), (".csv", ".tsv"), (".parquet",)
_SUFFIXES = _LINES + _CSV + _PARQUET
REJECTS_SUFFIX = ".rejected.ndjson"
_SNIFFED_LINES = 20
_EXPORT_FOLDERS = ("contacts", "messages", "entries")  # next to `events` in our own exports


class ReadOptions(msgspec.Struct, frozen=True):
    """The format of files: the system that wrote them (None: detect it), and the meaning of columns (`Columns`).

    `restart`: read files from the beginning, although an earlier run may have stored some of them.
    """

    dialect: Dialect | None = None
    columns: Mapping[str, str] = {}
    restart: bool = False


class HistoryFile:
    def __init__(self, path: Path, name: str, options: ReadOptions, names: EventNames) -> None:
        self.path, self.name, self.restart = path, name, options.restart
        self.size = path.stat().st_size
        self._options, self._names = options, names
        self._suffix = _suffix(path)

    @cached_property
    def digest(self) -> str:
        """32 hex digits for the bytes of the file and the options it is read with."""
        # With other options, the same bytes are other events, so progress of an earlier run must not count for them.
        options = msgspec.json.encode([self._options.dialect, sorted(self._options.columns.items())])
        digest = hashlib.blake2b(options, digest_size=16)
        with self.path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()

    @cached_property
    def dialect(self) -> Dialect:
        """The system that wrote the records; raises UnreadableFileError."""
        if self._options.dialect is not None:
            return self._options.dialect
        names = self._field_names()
        if is_segment(names):
            return "segment"
        return "posthog" if is_posthog(names) and "contact" not in names else "workbench"

    @contextmanager
    def open(self, after: int = 0) -> Iterator[Rows]:
        """Open the file to read the rows after line `after`; raise UnreadableFileError."""
        mapping: Callable[[Record], Record] | None
        match self.dialect:
            case "segment":
                mapping = partial(from_segment, names=self._names)
            case "posthog":
                mapping = partial(from_posthog, names=self._names)
            case "workbench":
                mapping = None

        def layout(names: Sequence[str]) -> TableRow:
            if mapping is not None:
                return partial(vendor_row, names, mapping)
            typed = self._suffix in _PARQUET
            return Columns(self.path.name, names, self._options.columns, self._names, typed=typed).row

        if self._suffix in _PARQUET:
            with open_parquet(self.path) as parquet:
                rows = parquet_rows(self.path.name, parquet, after, layout(parquet.schema_arrow.names))
                yield Rows(rows, lambda line: line / parquet.metadata.num_rows)
            return
        with open_lines(self.path) as file:
            if self._suffix in _CSV:
                yield Rows(csv_rows(self.path.name, file, after, layout), file.share)
            else:
                yield Rows(line_rows(file, after, mapping), file.share)

    def _field_names(self) -> set[str]:
        """Return the names of the columns, or of the fields of the first record."""
        if self._suffix in _PARQUET:
            with open_parquet(self.path) as parquet:
                return set(parquet.schema_arrow.names)
        with open_lines(self.path) as file:
            if self._suffix in _CSV:
                return set(column_names(file))
            for line in islice(file.lines(), _SNIFFED_LINES):
                try:
                    record = decode(line or b"")
                except MalformedJsonError:
                    continue
                if isinstance(record, dict):
                    return set(record)
        return set()


def find_sources(paths: Sequence[Path], options: ReadOptions) -> tuple[list[HistoryFile], EventNames]:
    """Return the files (those of folders ordered by path), and the record of event names that reading them changes.

    Raises UnreadableFileError for a path that does not exist, has an unknown format, or is a folder without files of
    history.
    """
    names = EventNames()
    sources: dict[Path, HistoryFile] = {}
    for path in paths:
        if not path.exists():
            raise UnreadableFileError(f"File not found: {path}")
        for file in _find_files(path):
            name = file.relative_to(path).as_posix() if path.is_dir() else path.name
            sources.setdefault(file, HistoryFile(file, name, options, names))
    return list(sources.values()), names


def _find_files(path: Path) -> list[Path]:
    if path.is_file():
        if _suffix(path) not in _SUFFIXES:
            raise UnreadableFileError(f"{path.name}: {path.suffix or 'no suffix'} is not one of {', '.join(_SUFFIXES)}")
        return [path]
    # In a folder of our own export only `events` is history.
    events = path / "events"
    folder = events if events.is_dir() and any((path / name).is_dir() for name in _EXPORT_FOLDERS) else path
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and _suffix(file) in _SUFFIXES
        and not file.name.endswith(REJECTS_SUFFIX)
        and not any(
            part.startswith((".", "_")) for part in file.relative_to(folder).parts
        )  # hidden files, and `_SUCCESS`
    ]
    if not files:
        raise UnreadableFileError(f"{path}: contains no file that ends in one of {', '.join(_SUFFIXES)}")
    return files


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = len(suffixes) > 1 and suffixes[-1] in COMPRESSED_SUFFIXES
    return suffixes[-2] if compressed else "".join(suffixes[-1:])
