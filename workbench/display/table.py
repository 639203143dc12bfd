"""Tables in a notebook, and the same rows as text for a terminal."""

from collections.abc import Sequence
from typing import Any

import msgspec

from workbench.display.page import html


class Column(msgspec.Struct, frozen=True):
    """A column; numbers stand right."""

    title: str
    number: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    *,
    title: str = "",
    note: str = "",
    empty: str = "Nothing yet.",
) -> str:
    """Return rows as HTML; `empty` is said instead when there are none."""
    return html("table.html.j2", columns=columns, rows=rows, title=title, note=note, empty=empty)


def plain(columns: Sequence[Column], rows: Sequence[Sequence[Any]], empty: str = "Nothing yet.") -> str:
    """Return rows as aligned text."""
    if not rows:
        return empty
    cells = [[column.title for column in columns], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    )
