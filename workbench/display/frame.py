"""A polars frame that displays itself as a table of the workbench.

Importing this module loads polars, which takes 0.3 s, so it is imported where a frame is made.
"""

from typing import Any

import polars as pl

from workbench.display.html import TableView, plain


class ShownFrame(pl.DataFrame):
    """A polars frame that displays itself as a table of the workbench. Frames derived from it look as in polars."""

    view: TableView | None = None

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


def with_view(frame: pl.DataFrame, view: TableView) -> ShownFrame:
    """Return a frame that displays itself as `view`."""
    result = ShownFrame(frame)
    result.view = view
    return result
