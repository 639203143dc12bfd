"""The report of an import, and the file of the rows that it rejected.

Each rejected row is one line of JSON that can be corrected and imported: the fields that could be read, with the reason
in front: `{"rejected": {"line": 7, "reason": "…"}, "event": …}`. The import ignores the field `rejected` like any
unknown field. A row that is not a JSON object is kept as text.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from api.imports.formats import REJECTS_SUFFIX, HistoryFile
from workbench.language.codec import encode
from workbench.language.problem import Problems

_MAX_LISTED_ROWS = 20

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ReportedRow(msgspec.Struct, frozen=True):
    """A row that was rejected, or stored in part: its line number, from 1, the problems, and its file, if several."""

    line: int
    problems: Problems
    file: str = ""

    def __str__(self) -> str:
        where = f"{self.file}, line" if self.file else "line"
        return f"{where} {self.line}: {self.reason}"

    @property
    def reason(self) -> str:
        """All problems in one line."""
        return "; ".join(map(str, self.problems))


class ImportReport(msgspec.Struct, frozen=True):
    """Counts of rows. `before`: rows that an earlier run has processed. `warned`: stored rows of which something was
    left out. `rejected_rows`, `warned_rows`: the first of those.
    """

    read: int = 0
    stored: int = 0
    duplicates: int = 0
    rejected: int = 0
    before: int = 0
    rejected_rows: tuple[ReportedRow, ...] = ()
    warned: int = 0
    warned_rows: tuple[ReportedRow, ...] = ()

    def plus(self, other: Self) -> Self:
        return type(self)(
            self.read + other.read,
            self.stored + other.stored,
            self.duplicates + other.duplicates,
            self.rejected + other.rejected,
            self.before + other.before,
            (self.rejected_rows + other.rejected_rows)[:_MAX_LISTED_ROWS],
            self.warned + other.warned,
            (self.warned_rows + other.warned_rows)[:_MAX_LISTED_ROWS],
        )

    def __str__(self) -> str:
        counts = (
            f"{self.read:,} read: {self.stored:,} stored, {self.duplicates:,} duplicates, {self.rejected:,} rejected"
        )
        earlier = [f"{self.before:,} more were done by an earlier run"] if self.before else []
        warned = [f"{self.warned:,} stored with warnings:"] if self.warned else []
        rejected_lines, warned_lines = _lines(self.rejected_rows, self.rejected), _lines(self.warned_rows, self.warned)
        return "\n".join([counts, *earlier, *rejected_lines, *warned, *warned_lines])


def _lines(rows: Sequence[ReportedRow], count: int) -> list[str]:
    more = count - len(rows)
    return [*map(str, rows), *([f"and {more:,} more"] if more else [])]


def default_rejects_path(path: Path) -> Path:
    """Return the default path for the rejected rows of a file or folder: next to it."""
    return path.absolute().with_name(path.absolute().name + REJECTS_SUFFIX)


class UnwritableError(Exception):
    """Rejected rows cannot be written; the text has the reason."""


class Rejects:
    """A file of rejected rows, created with the first one. A later run appends to it without repeating a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: BinaryIO | None = None
        self._existing: set[bytes] = set()  # digests of lines: a million take a hundred megabytes, whole lines far more
        self._unsynced = False

    def add(self, source: HistoryFile, row: ReportedRow, text: bytes) -> None:
        """Write a row and the reason; raise UnwritableError."""
        reason = {"file": source.name, "line": row.line, "reason": row.reason}
        try:
            fields = _OBJECT.decode(text)
        except (ValueError, RecursionError):
            line = encode({"rejected": reason | {"text": text.decode(errors="replace")}}) + b"\n"
        else:
            others = {name: value for name, value in fields.items() if name != "rejected"}
            line = encode({"rejected": reason} | others) + b"\n"
        file = self._file or self._open()
        self.count += 1
        if _digest(line) not in self._existing:
            file.write(line)
            self._unsynced = True

    def flush(self) -> None:
        """Sync what was written to disk."""
        if self._file is not None and self._unsynced:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._unsynced = False

    def _open(self) -> BinaryIO:
        try:
            self._file = self.path.open("a+b")
            self._file.seek(0)
            line = b"\n"
            for line in self._file:
                self._existing.add(_digest(line.removesuffix(b"\n") + b"\n"))
            if not line.endswith(b"\n"):  # an earlier run was killed in the middle of a line
                self._file.write(b"\n")
        except OSError as error:
            raise UnwritableError(
                f"{self.path}: {error.strerror}. Pass --rejects PATH to write rejected rows to another file"
            ) from error
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._file is not None:
            self._file.close()


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()
