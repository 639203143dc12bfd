"""CSV: RFC 4180 with a header; commas, semicolons or tabs. Rows are numbered by the line on which they end."""

import csv
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from api.ingest.files.opened import MAX_LINE, Opened
from api.ingest.files.row import Row, UnreadableFileError
from api.ingest.files.table import Table
from api.language.problem import Problem

_MOST_LINES = 1_000  # of one row; further on, a quote that was never closed is what it is


class CsvRows:
    """The rows of a CSV file past its line `after`; `table` makes what rows are of the names in the header."""

    def __init__(self, name: str, file: Opened, after: int, table: Callable[[Sequence[str]], Table]) -> None:
        self._file, self._after = file, after
        self._lines = _Lines(file.lines())
        self._names, self._delimiter = _header(next(self._lines, ""))
        if not self._names:
            raise UnreadableFileError(f"{name}: is empty; a CSV file begins with the names of its columns")
        self._table = table(self._names)

    @property
    def share(self) -> float:
        """How much of the file has been read."""
        return self._file.share

    def __iter__(self) -> Iterator[Row]:
        """Give every row that is not empty."""
        lines, table_row = self._lines, self._table.row
        lines.skip(self._after)
        while True:
            try:
                for cells in csv.reader(lines, delimiter=self._delimiter, strict=True):
                    problem = lines.problem or self._misfit(cells)
                    text = lines.take()
                    if problem is not None:
                        yield lines.number, text, (problem,)
                    elif cells:
                        yield table_row(lines.number, cells)
            except csv.Error as error:
                yield lines.refuse_one(str(error))
            else:
                return

    def _misfit(self, cells: list[str]) -> Problem | None:
        if not cells or len(cells) == len(self._names):
            return None
        return Problem("", f"has {len(cells)} cells, the header has {len(self._names)}")


def column_names(file: Opened) -> list[str]:
    """Return the names in the header of a CSV file."""
    return _header(next(_Lines(file.lines()), ""))[0]


def _header(line: str) -> tuple[list[str], str]:
    """Return the names of the columns, and what stands between them."""
    line = line.removeprefix("\ufeff").rstrip("\r\n")
    delimiter = max(",;\t", key=line.count)
    return next(csv.reader([line], delimiter=delimiter), []), delimiter


class _Lines:
    """Lines as text, of which those since the last `take` can be read again: a quote that is never closed swallows many."""

    def __init__(self, lines: Iterator[bytes | None]) -> None:
        self._lines = lines
        self._again: deque[bytes] = deque()
        self._read: list[bytes] = []
        self.number = 0
        self.problem: Problem | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self._read) > _MOST_LINES:
            raise csv.Error("a quote is not closed")
        line = self._again.popleft() if self._again else next(self._lines)
        self.number += 1
        if line is None:
            self.problem = Problem("", f"is longer than {MAX_LINE} bytes")
            return "\n"
        self._read.append(line)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.problem = Problem("", f"is not UTF-8: {error.reason} at byte {error.start + 1}")
            return line.decode(errors="replace")

    def take(self) -> bytes:
        """Return what has been read since it was last asked, and forget it."""
        text = b"".join(self._read).rstrip(b"\r\n")
        self._read.clear()
        self.problem = None
        return text

    def skip(self, after: int) -> None:
        """Go past line `after`."""
        while self.number < after and next(self._lines, b"") != b"":
            self.number += 1
        self.take()

    def refuse_one(self, reason: str) -> Row:
        """Return the first line read as one that cannot be; the others will be read again."""
        first, *others = self._read
        self._again.extendleft(reversed(others))
        self.number -= len(others)
        self._read.clear()
        self.problem = None
        return self.number, first.rstrip(b"\r\n"), (Problem("", f"is no row of CSV: {reason}"),)
