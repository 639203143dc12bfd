"""HTML for notebooks: small templates with everything escaped, tables, pictures as data URIs.

JupyterLab strips inline SVG and styles in untrusted notebooks but keeps `<img>` and `<details>`. So pictures are
always images, and every page can be read without its colours. Colours are mid-tones that work on light and dark
pages.

Tables exist twice: as HTML, and as text for terminals.
"""

import base64
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, TypeVar

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from workbench.display import words
from workbench.display.kinds import STEP_WORDS, handle_words
from workbench.language.channel import channel_of
from workbench.language.codec import encode, printable

T = TypeVar("T")


def printable_text(display: Callable[[T], str]) -> Callable[[T], str]:
    """Decorate `__repr__` or `__str__`: its text reaches a terminal without control characters."""

    @wraps(display)
    def text(self: T) -> str:
        return printable(display(self))

    return text


# Precedes the HTML of an email in its frame; it forbids scripts, and everything from the network except images.
_EMAIL_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data: https:; style-src 'unsafe-inline'\">"
)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def html(template: str, **values: Any) -> str:
    """Return a rendered template, for one output area."""
    return _environment().get_template(template).render(**values)


def svg(template: str, **values: Any) -> str:
    """Return a rendered SVG document, without the characters that are not allowed in XML."""
    return _NOT_XML.sub("", _environment().get_template(template).render(**values))


def image(source: str, width: float, height: float, alt: str) -> Markup:
    """Return an `<img>` of an SVG document that shrinks with the page."""
    # JupyterLab strips inline SVG and scripts from notebooks that are not trusted, but keeps images with a data URI.
    encoded = base64.b64encode(source.encode()).decode()
    return Markup(
        '<img src="data:image/svg+xml;base64,{}" width="{}" height="{}" alt="{}" style="max-width:100%;height:auto">'
    ).format(encoded, round(width), round(height), alt)


def bar(share: float, width: int = 120, height: int = 10) -> Markup:
    """Return a progress bar; `share` is 0 to 1."""
    source = svg("bar.svg.j2", share=min(max(share, 0.0), 1.0), width=width, height=height)
    return image(source, width, height, f"{share:.0%}")


def spark(counts: Sequence[int], width: int = 124, height: int = 22) -> Markup:
    """Return a bar chart of counts by day."""
    largest = max(counts, default=0)
    heights = [max(round(20 * count / largest), 1) if count else 0 for count in counts]  # 0 pixels only for 0 events
    source = svg("spark.svg.j2", heights=heights, width=width, height=height)
    return image(source, width, height, f"{len(counts)} days, at most {largest:,} a day")


def trend(values: Sequence[int | None], width: int = 120, height: int = 22) -> Markup:
    """Return a line chart of values at equal distances; None is a gap."""
    present = [value for value in values if value is not None]
    # Values that are all equal make a line in the middle, hence `or 1`.
    low, high = min(present, default=0), max(present, default=0)
    step, scale = (width - 6) / max(len(values) - 1, 1), (height - 6) / (high - low or 1)  # 3 pixels of margin
    points = [
        (3 + index * step, height / 2 if low == high else height - 3 - (value - low) * scale)
        for index, value in enumerate(values)
        if value is not None
    ]
    source = svg("trend.svg.j2", points=points, width=width, height=height)
    return image(source, width, height, f"from {low:,} to {high:,}")


def moment(at: datetime | str | None) -> str:
    """Return a time in UTC to the second: `2026-11-20 10:00:00`; empty for None."""
    if at is None:
        return ""
    return at.strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, datetime) else at[:19].replace("T", " ")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # StrictUndefined: a misspelled variable fails in a test instead of rendering as nothing. Autoescape: event names
    # and payloads come from outside.
    environment = Environment(
        loader=PackageLoader("workbench.display"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": moment,
        "short": words.short,
        "condition": words.condition,
        "actual_cell": words.actual_cell,
        "outcome": words.outcome,
        "message": words.message_parts,
        "channel": lambda message: channel_of(message).name,
        "json": lambda value: encode(value).decode(),
        "detail": words.step_detail,
        "offset": words.offset,
        "handle": handle_words,
        "step": lambda kind: STEP_WORDS.get(kind, kind),
    }
    environment.globals |= {"bar": bar, "spark": spark, "policy": _EMAIL_POLICY}
    return environment


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table; numbers are aligned to the right."""

    title: str
    number: bool = False


def table_columns(*titles: str, numbers: Collection[str] = ()) -> tuple[TableColumn, ...]:
    """Return columns with these titles; `numbers` are the titles of those with numbers."""
    return tuple(TableColumn(title, title in numbers) for title in titles)


def table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Any]],
    *,
    title: str = "",
    note: str = "",
    empty: str = "Nothing yet.",
) -> str:
    """Return a table as HTML; `empty` replaces a table without rows."""
    return html("table.html.j2", columns=columns, rows=rows, title=title, note=note, empty=empty)


def plain(columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]], empty: str = "Nothing yet.") -> str:
    """Return a table as aligned text; `empty` replaces a table without rows."""
    if not rows:
        return empty
    cells = [[column.title for column in columns], *([printable(str(cell), kept="") for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    )


class TableView(msgspec.Struct, frozen=True):
    """The table that a `ShownFrame` displays. `warnings` are sentences about the result."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    empty: str = "Nothing yet."
    note: str = ""
    warnings: Sequence[str] = ()

    def html(self) -> str:
        """Return the table as HTML, without the warnings."""
        return table(self.columns, self.rows, title=self.title, note=self.note, empty=self.empty)


class ItemSequence(Sequence[T]):
    """A sequence that cannot be changed."""

    def __init__(self, items: Sequence[T]) -> None:
        self._items = items

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


class TableSequence(ItemSequence[T]):
    """A sequence that displays itself as a table."""

    @abstractmethod
    def _view(self) -> TableView:
        """Return the table of the items."""

    @printable_text
    def __repr__(self) -> str:
        view = self._view()
        return plain(view.columns, view.rows, view.empty)

    def _repr_html_(self) -> str:
        return self._view().html()


class ProgressLine:
    """One line of output that is replaced as work proceeds: an output area in Jupyter, nothing elsewhere."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, state: str, look: str, share: float | None = None) -> None:
        """Show or replace the line. `look` is the colour of the state (a CSS class), `share` the progress (0 to 1)."""
        ipython = sys.modules.get("IPython")  # read from sys.modules: without Jupyter there is nothing to show
        if ipython is None or ipython.get_ipython() is None:
            return
        bundle = {
            "text/plain": printable(f"{text} [{state}]"),
            "text/html": html("line.html.j2", text=text, state=state, look=look, note="", block="", share=share),
        }
        if self._handle is None:
            self._handle = ipython.display.display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
