"""The answer to a ready-made question: a polars frame with a picture, and the SQL it came from.

Importing this module loads polars.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl

from workbench.display import drawn
from workbench.display.frame import Look, ShownFrame
from workbench.display.page import html, moment
from workbench.display.table import Column
from workbench.display.words import counted, duration
from workbench.result import Result

if TYPE_CHECKING:
    import altair as alt

MOST_ROWS = 24
_SHARES = frozenset({"share", "share_so_far", "of_first", "of_previous", "rate"})
_SECONDS = frozenset({"median_seconds", "after_seconds", "within_seconds"})
_WORDS = {
    "at": "from",
    "departed": "left",
    "of_first": "of the first",
    "of_previous": "of the one before",
    "median_seconds": "median time",
    "after_seconds": "after",
    "within_seconds": "within",
}


class Report(ShownFrame, Result):
    """A result that draws itself. `wb.sql(report.statement, as_of=report, **report.params)` is exactly the same once more."""

    _name: str

    def chart(self) -> "alt.Chart | alt.LayerChart":
        """Return the picture as an Altair chart, to be changed at will."""
        return drawn.chart(self._name, pl.DataFrame(self))

    def _changed(self) -> None:
        """Forget the question and its table, too."""
        super()._changed()
        self.look = None

    def _repr_html_(self, **polars: Any) -> str:
        if self.look is None:
            return super()._repr_html_(**polars)
        picture = drawn.picture(self._name, pl.DataFrame(self))
        return html("report.html.j2", look=self.look, picture=picture, report=self, at=moment(self.watermark))


def report(rows: Result, name: str, title: str, doubts: Sequence[str] = ()) -> Report:
    """Return what a query returned as the answer to a question, with sentences that doubt it."""
    result = Report(rows)
    result.look, result._name = _look(rows, title, doubts), name
    result.origin = rows.origin
    return result


def _look(frame: pl.DataFrame, title: str, doubts: Sequence[str]) -> Look:
    columns = [
        Column(_WORDS.get(name, name.replace("_", " ")), number=kind.is_numeric())
        for name, kind in frame.schema.items()
    ]
    rows = [
        [_cell(name, value) for name, value in zip(frame.columns, row, strict=True)]
        for row in frame.head(MOST_ROWS).iter_rows()
    ]
    note = f"{MOST_ROWS} of {counted(frame.height, 'row')}; all are in the frame." if frame.height > MOST_ROWS else ""
    return Look(columns, rows, title, "Nothing of that kind happened in the period.", note, doubts)


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case list():
            return " → ".join(value)
        case datetime():
            return f"{value:%Y-%m-%d}" if not (value.hour or value.minute) else moment(value)
        case int() | float() | Decimal():
            return _number(name, value)
        case _:
            return str(value)


def _number(name: str, value: float | Decimal) -> str:
    if name in _SECONDS:
        return duration(timedelta(seconds=round(value)))
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
