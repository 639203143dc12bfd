"""A polars frame that displays itself as a table of the workbench.

Importing this module loads polars, which takes 0.3 s, so it is imported where a frame is made.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import polars as pl

from workbench.display.html import TableView, plain, printable_text
from workbench.frames import PrintableFrame, frame_of


class ShownFrame(PrintableFrame):
    """A polars frame that displays itself as a table of the workbench. Derived frames look as in polars."""

    view: TableView | None = None

    @printable_text
    def __str__(self) -> str:
        view = self.view
        if view is None:
            return super().__str__()
        return "\n".join(
            filter(None, (view.title, plain(view.columns, view.rows, view.empty), view.note, *view.warnings))
        )

    __repr__ = __str__

    def _repr_html_(self, **polars: Any) -> str:
        return super()._repr_html_(**polars) if self.view is None else self.view.html()

    def _display_(self) -> "MarimoHtml | pl.DataFrame":
        """Return what marimo displays; it would show any polars frame as its own table."""
        return pl.DataFrame(self) if self.view is None else MarimoHtml(self._repr_html_())


class MarimoHtml(msgspec.Struct, frozen=True):
    """HTML for marimo."""

    html: str

    def _mime_(self) -> tuple[str, str]:
        return "text/html", self.html


def shown_frame(view: TableView, rows: Iterable[Any], **columns: type) -> ShownFrame:
    """Return a frame of rows, made by `frame_of`, that displays itself as `view`."""
    result = ShownFrame(frame_of(rows, **columns))
    result.view = view
    return result
