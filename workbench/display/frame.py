"""A polars frame that shows itself as the workbench's tables do: whole sentences, moments in UTC, what matters first.

Importing this module loads polars, which takes 0.3 s: it is done where a frame is made.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from workbench.display.table import Column, plain, table


class Look(msgspec.Struct, frozen=True):
    """What is shown in place of a frame."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str
    empty: str
    note: str = ""
    doubts: Sequence[str] = ()


class ShownFrame(pl.DataFrame):
    """A polars frame with a look; frames that are made from it look as polars has them."""

    look: Look | None = None

    def __str__(self) -> str:
        if self.look is None:
            return super().__str__()
        table = plain(self.look.columns, self.look.rows, self.look.empty)
        return "\n".join(filter(None, (self.look.title, table, self.look.note, *self.look.doubts)))

    __repr__ = __str__

    def _repr_html_(self, **polars: Any) -> str:
        if self.look is None:
            return super()._repr_html_(**polars)
        look = self.look
        return table(look.columns, look.rows, title=look.title, note=look.note, empty=look.empty)


def shown(frame: pl.DataFrame, look: Look) -> ShownFrame:
    """Return a frame with a look."""
    result = ShownFrame(frame)
    result.look = look
    return result
