"""Charts where Altair is there (`pip install "event-workbench[charts]"`), which is loaded when one is drawn."""

import importlib.util
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from workbench.display.page import html
from workbench.errors import DraftError

if TYPE_CHECKING:
    import altair as alt


def chart(name: str, frame: pl.DataFrame) -> "alt.Chart | alt.LayerChart":
    """Return the chart of that name; raise DraftError without Altair."""
    if importlib.util.find_spec("altair") is None or importlib.util.find_spec("vl_convert") is None:
        raise DraftError('pictures need Altair: pip install "event-workbench[charts]"')
    from workbench.display import charts

    return charts.draw(name, frame)


def picture(name: str, frame: pl.DataFrame) -> str:
    """Return the chart as HTML, or what it needs; nothing when there are no rows."""
    if not frame.height:
        return ""
    try:
        drawn = chart(name, frame)
    except DraftError as error:
        return Markup(html("line.html.j2", text=str(error), state="", look="", note="", block=""))  # noqa: S704  our own template, which escapes
    from workbench.display import charts

    return charts.picture(drawn)
