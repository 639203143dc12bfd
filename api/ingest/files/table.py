"""Rows of a table: its cells make an event by the meaning of the columns, or a record that a mapping reads."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from api.ingest.files.row import Record, Row
from api.language.codec import MalformedJsonError, decode, encode


class Table(Protocol):
    """What makes a row of cells."""

    def row(self, line: int, cells: Sequence[Any]) -> Row:
        """Return the row of some cells."""


class Records:
    """A table of another system's records; cells that are JSON objects as text are objects."""

    def __init__(self, names: Sequence[str], mapping: Callable[[Record], Record]) -> None:
        self._names, self._mapping = names, mapping

    def row(self, line: int, cells: Sequence[Any]) -> Row:
        """Return the row of some cells."""
        record = {name: _cell(cell) for name, cell in zip(self._names, cells, strict=True) if cell not in (None, "")}
        return line, encode(self._mapping(record)), ()


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
