"""A row of a file, and why a file gives none."""

from collections.abc import Iterator
from typing import Any, Protocol

from api.language.problem import Problems


class UnreadableFileError(Exception):
    """The file as a whole is nothing we can read; the text says why."""


Row = tuple[int, bytes, Problems]
"""The number of a line, from 1, and its event as JSON text; with problems, the text is the row as it was found."""


class Rows(Protocol):
    """The rows of a file that is being read, and what is known of it so far."""

    @property
    def share(self) -> float:
        """How much of the file has been read, from 0 to 1."""

    def __iter__(self) -> Iterator[Row]:
        """Give every row; raise UnreadableFileError, also midway."""


Record = dict[str, Any]
"""The fields or columns of a row by their names."""
