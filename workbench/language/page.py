"""A page: results of queries as one HTML document, for readers without a notebook.

A notebook and the server write pages with the same functions, so a mailed page looks like the page in the notebook of
its author. A page loads nothing: it contains its styles, charts are SVG, and its content security policy forbids
everything else. It is light or dark like the reader's system, and can be printed.

Charts are simpler than in a notebook: one number, as columns over time or as bars by name. The table below a chart has
all numbers, for people who cannot see the chart. Mail programs remove SVG, so emails have only tables (`charts=False`).
A report by cohort is a table with a row for each cohort, in which the shade of a cell is its value.
"""

from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

import msgspec
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from msgspec import Meta

from workbench.language.codec import encode, printable
from workbench.language.reports import Every, start_of_period

MAX_PAGE_ROWS = 500  # of a section; a page is for reading
MAX_COHORT_CELLS = 5_000  # of a report by cohort: a row of its query is one cell of its table
MAX_SECTIONS = 20
UNITS_S = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))

_MAX_BARS = 30
_MAX_COLUMNS = 120  # of a chart over time
_DURATION_DIGITS = 11  # of seconds: 3,000 years; a duration has at most 999,999,999 days
_MAX_DIGITS = 40  # Postgres has numbers of 131,072 digits, which no float holds and no cell shows
_SHARES = frozenset({"share", "share_so_far", "of_first", "of_previous", "rate"})
_SECONDS = frozenset({"median_seconds", "after_seconds", "within_seconds"})
_MEASURES = ("total", "contacts", "size", "events", "sent")  # what a chart shows if the result has it
_COLUMN_WORDS = {
    "at": "from",
    "complete": "",  # the cells say "in part", or nothing
    "departed": "left",
    "stayed": "returning",
    "of_first": "% of step 1",
    "of_previous": "% of previous step",
    "median_seconds": "median time",
    "after_seconds": "after",
    "within_seconds": "within",
}


class PageSection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one query. `query_hash` and `watermark` identify it.

    `rows`: at most `row_limit` of them; `complete`: whether these are all. `report`: the columns are those of a
    built-in report, so their names decide on headings, percent signs and durations. `error`: why there is no result.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    complete: bool = True
    report: bool = False
    titles: Mapping[str, str] = {}
    query_hash: str | None = None
    watermark: str | None = None
    warnings: Sequence[str] = ()
    error: str | None = None


class RelativeTime(msgspec.Struct, frozen=True):
    """A time that moves with the run of a page: `seconds` before it, or the start of a day, week or month.

    With `every`, it is the start (in UTC) of the period that is `periods` before the one that ends there.
    """

    seconds: Annotated[float, Meta(ge=0, le=1e10)] = 0.0
    every: Every | None = None
    periods: Annotated[int, Meta(ge=0, le=10_000)] = 0

    def before(self, end: datetime) -> datetime:
        """Return the time that belongs to a run at `end`."""
        moment = end.astimezone(UTC) - timedelta(seconds=self.seconds)
        return moment if self.every is None else start_of_period(moment, self.every, self.periods)


def page_html(title: str, sections: Sequence[PageSection], made_at: datetime, *, charts: bool = True) -> str:
    """Return the document. `charts=False`: without charts, for the body of an email."""
    drawn = [(section, chart_svg(section) if charts else "", _table(section)) for section in sections]
    made = f"{made_at.astimezone(UTC):%Y-%m-%d %H:%M}"
    return _template().render(title=title, sections=drawn, made_at=made)


def cell_text(column: str, value: Any) -> str:
    """Return a value as a reader of a report sees it; the column decides on percent signs and durations."""
    match value:
        case None:
            return ""
        case bool():
            return ("" if value else "in part") if column == "complete" else str(value).lower()
        case list() if all(isinstance(item, str) for item in value):
            return " → ".join(value)
        case datetime():
            return f"{value:%Y-%m-%d}" if not (value.hour or value.minute) else f"{value:%Y-%m-%d %H:%M:%S}"
        case int() | float() | Decimal() if not _fits(value):
            return f"{Decimal(value):.6g}"
        case int() | float() | Decimal() if column in _SECONDS and _fits(value, _DURATION_DIGITS):
            return duration(timedelta(seconds=round(value)))
        case int() | float() | Decimal() if column in _SHARES:
            return f"{value:.1%}"
        case int():
            return f"{value:,}"
        case float() | Decimal():
            return f"{value:,.2f}"
        case _:
            return encode(value).decode() if isinstance(value, list | dict) else str(value)


def column_title(column: str, titles: Mapping[str, str] = {}) -> str:
    """Return the heading of a column; `titles` are those of one report."""
    return (_COLUMN_WORDS | dict(titles)).get(column, column.replace("_", " "))


def duration(span: timedelta) -> str:
    """Return a duration in its two largest units: `3 days`, `1 hour 30 minutes`."""
    return " ".join(quantity(*part) for part in units_of(round(span.total_seconds()))[:2]) or "no time"


def units_of(seconds: int) -> list[tuple[int, str]]:
    """Return a duration in all its units, the largest first: `(1, "day")`, `(3, "second")`."""
    parts = []
    for size, noun in UNITS_S:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append((number, noun))
    return parts


def quantity(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


# --- Charts

_WIDTH, _MAX_LABELS, _BAR_PX, _HEIGHT = 640, 300, 22, 180  # pixels
_CHARACTER_PX = 7.5  # of a wide font


def chart_svg(section: PageSection) -> Markup:
    """Return a chart of a section, or nothing if its rows have no name or time of their own, or no number."""
    if _cohort_value(section) is not None:  # its table is shaded
        return Markup("")
    rows, names = section.rows, section.columns
    over_time = _column_of(rows, datetime) if len(rows) <= _MAX_COLUMNS else None
    by_name = next((column for kind in (str, list) if (column := _column_of(rows, kind)) is not None), None)
    label = by_name if over_time is None else over_time
    measure = _measure(section)
    if label is None or measure is None:
        return Markup("")
    values = [max(float(row[measure] or 0), 0.0) for row in rows]
    texts = [printable(_cell(section, names[label], row[label]), kept="") for row in rows]
    shown = [_cell(section, names[measure], row[measure]) for row in rows]
    draw = _columns_over_time if over_time is not None else _bars
    body, height = draw(values, texts, shown)
    axes = f"{_heading(section, names[measure])} by {_heading(section, names[label])}"
    about = f"{axes}; the same numbers as in the table below"
    return Markup('<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, height, _WIDTH, height, f"{section.title}: {about}", body
    )


def _column_of(rows: Sequence[Sequence[Any]], kind: type) -> int | None:
    """Return the first column in which every row has a different value of this type."""
    for index in range(len(rows[0]) if rows else 0):
        values = [row[index] for row in rows]
        if all(isinstance(value, kind) for value in values) and len(set(map(str, values))) == len(values) > 1:
            return index
    return None


def _measure(section: PageSection) -> int | None:
    numbers = [
        index
        for index, name in enumerate(section.columns)
        if not (section.report and name in ("step", "number"))
        and all(row[index] is None or _is_number(row[index]) for row in section.rows)
        and any(row[index] is not None for row in section.rows)
    ]
    preferred = [section.columns.index(name) for name in _MEASURES if name in section.columns]
    return next((index for index in [*preferred, *numbers] if index in numbers), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and _fits(value)


def _fits(value: float | Decimal, digits: int = _MAX_DIGITS) -> bool:
    """Return whether a number is finite and short enough for a cell and a chart."""
    number = Decimal(value)
    return number.is_finite() and number.adjusted() < digits


def _bars(values: list[float], texts: list[str], shown: list[str]) -> tuple[Markup, int]:
    characters = int(_MAX_LABELS / _CHARACTER_PX)
    half = characters // 2  # paths differ at their ends
    labels = [text if len(text) <= characters else f"{text[:half]}…{text[1 - half :]}" for text in texts]
    left = round(max(map(len, labels)) * _CHARACTER_PX) + 8
    largest, room = max(values) or 1.0, _WIDTH - left - 110
    lines = [
        Markup(
            '<text x="{}" y="{}" text-anchor="end">{}</text><rect x="{}" y="{}" width="{:.1f}" height="14"/>'
            '<text x="{:.1f}" y="{}">{}</text>'
        ).format(
            *(left - 8, index * _BAR_PX + 15, label),
            *(left, index * _BAR_PX + 4, value / largest * room),
            *(left + value / largest * room + 6, index * _BAR_PX + 15, number),
        )
        for index, (value, label, number) in enumerate(zip(values, labels, shown, strict=True))
        if index < _MAX_BARS
    ]
    if (rest := len(values) - len(lines)) > 0:
        text = f"{quantity(rest, 'more row')} in the table below"
        lines.append(Markup('<text x="{}" y="{}">{}</text>').format(left, len(lines) * _BAR_PX + 15, text))
    return Markup("").join(lines), len(lines) * _BAR_PX + 4


def _columns_over_time(values: list[float], texts: list[str], shown: list[str]) -> tuple[Markup, int]:
    largest, step = max(values) or 1.0, _WIDTH / len(values)
    tops = [_HEIGHT - 20 - value / largest * (_HEIGHT - 50) for value in values]
    columns = [
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>').format(
            index * step + step * 0.1, top, step * 0.8, _HEIGHT - 20 - top, text, number
        )
        for index, (top, text, number) in enumerate(zip(tops, texts, shown, strict=True))
    ]
    peak = values.index(max(values))
    anchor = "start" if peak * step < 60 else "end" if peak * step > _WIDTH - 60 else "middle"
    labels = Markup(
        '<text x="0" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>'
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
    ).format(
        _HEIGHT - 4, texts[0], _WIDTH, _HEIGHT - 4, texts[-1], (peak + 0.5) * step, tops[peak] - 6, anchor, shown[peak]
    )
    return Markup("").join([*columns, labels]), _HEIGHT


# --- The document


class _Table(msgspec.Struct, frozen=True):
    """Texts, each with the CSS of its cell, because mail programs remove <style>. `note`: how to read them."""

    headings: list[tuple[str, str]]
    rows: list[list[tuple[str, str]]]
    note: str = ""


_CELL = "padding:3px 16px 3px 0;border-bottom:1px solid #c9cdd6;vertical-align:top;text-align:"
_LEFT, _RIGHT = f"{_CELL}left", f"{_CELL}right"
_SHADED = f"{_CELL}right;padding:3px 8px;white-space:nowrap;background:rgba(97,102,220,{{:.2f}})"
_DARKEST = 0.55  # the text stays legible on it, light or dark


def _table(section: PageSection) -> _Table:
    value = _cohort_value(section)
    if value is not None:
        return _cohort_table(section, value)
    numeric = [any(_is_number(row[index]) for row in section.rows) for index in range(len(section.columns))]
    rows = [
        [_styled(section, *cell) for cell in zip(section.columns, row, numeric, strict=True)] for row in section.rows
    ]
    headings = [
        (_heading(section, name), _RIGHT if is_number else _LEFT)
        for name, is_number in zip(section.columns, numeric, strict=True)
    ]
    return _Table(headings, rows)


def _styled(section: PageSection, column: str, value: Any, is_number: bool) -> tuple[str, str]:
    wraps = not is_number and not isinstance(value, date | bool)
    style = (_RIGHT if is_number else _LEFT) + ("" if wraps else ";white-space:nowrap")
    return printable(_cell(section, column, value)), style


def row_limit(columns: Sequence[str], *, report: bool) -> int:
    """Return how many rows of a result a page shows."""
    return MAX_PAGE_ROWS if not report or _cohort_column(columns) is None else MAX_COHORT_CELLS


def _cohort_column(columns: Sequence[str]) -> str | None:
    if not {"cohort", "size", "number", "complete"}.issubset(columns):
        return None
    return next((name for name in ("share", "so_far") if name in columns), None)


def _cohort_value(section: PageSection) -> str | None:
    """Return the column that fills the cells of a report by cohort; None for all other results."""
    if not section.report or (value := _cohort_column(section.columns)) is None:
        return None
    # Over HTTP, any query may have these columns.
    number = section.columns.index("number")
    keys = [section.columns.index(name) for name in _cohort_keys(section.columns)]
    is_by_cohort = all(
        isinstance(row[number], int) and all(isinstance(row[key], Hashable) for key in keys) for row in section.rows
    )
    return value if is_by_cohort else None


def _cohort_keys(columns: Sequence[str]) -> list[str]:
    return [name for name in ("segment", "cohort", "size") if name in columns]


def _cohort_table(section: PageSection, value: str) -> _Table:
    """Return a table with a row for each cohort, and a column for each number of periods since its own."""
    keys = _cohort_keys(section.columns)
    cohorts: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for row in (dict(zip(section.columns, row, strict=True)) for row in section.rows):
        cohorts.setdefault(tuple(row[key] for key in keys), {})[row["number"]] = row
    if not section.complete and len(cohorts) > 1:
        cohorts.popitem()  # of which only the first rows were read

    def is_shaded(row: dict[str, Any]) -> bool:
        # All contacts of a cohort are in its own period: a share of 100 % says nothing, and would take up the scale.
        return _is_number(row[value]) and not (value == "share" and row["number"] == 0)

    cells = [row for of_cohort in cohorts.values() for row in of_cohort.values()]
    largest = max((float(row[value]) for row in cells if is_shaded(row)), default=0.0)

    def cell(row: dict[str, Any] | None) -> tuple[str, str]:
        if row is None:
            return "", _RIGHT
        depth = max(float(row[value]) / largest, 0.0) if largest > 0 and is_shaded(row) else 0.0
        text = _cell(section, value, row[value]) + ("" if row["complete"] else "*")
        return printable(text), _SHADED.format(depth * _DARKEST)

    numbers, period = sorted({row["number"] for row in cells}), _heading(section, "number")
    rows = [
        [_styled(section, key, cell_value, key == "size") for key, cell_value in zip(keys, cohort, strict=True)]
        + [cell(of_cohort.get(number)) for number in numbers]
        for cohort, of_cohort in cohorts.items()
    ]
    headings = [(_heading(section, key), _RIGHT if key == "size" else _LEFT) for key in keys]
    headings += [(f"{period} {number}", _SHADED.format(0)) for number in numbers]
    measure = "share of the cohort that came back" if value == "share" else "total per contact so far"
    note = f"The {measure}. {period.capitalize()} 0 is that of the first event."
    if not all(row["complete"] for row in cells):
        note += f" * In part: a {period} that the report does not cover entirely."
    return _Table(headings, rows, note)


def _cell(section: PageSection, column: str, value: Any) -> str:
    return cell_text(column if section.report else "", value)


def _heading(section: PageSection, column: str) -> str:
    return column_title(column, section.titles) if section.report else column


# The policy forbids everything that a page does not need.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root {
  color-scheme: light dark;
  --ink: #22252e; --soft: #5b6372; --line: #c9cdd6; --paper: #fff; --mark: #6166dc; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaf0; --soft: #a9b0be; --line: #454b58; --paper: #16181d; --mark: #9297ff; --bad: #ff8a80 }
}
@media print {
  :root { --ink: #000; --soft: #444; --line: #999; --paper: #fff; --mark: #555; --bad: #000 }
  section { break-inside: avoid }
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif }
body { color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.soft { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere }
.bad { color: var(--bad) }
.wide { overflow-x: auto }
svg { max-width: 100%; height: auto }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
rect { fill: var(--mark) }
table { border-collapse: collapse }
th { font-weight: 600 }
th, td { border-color: var(--line) !important }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p class="soft">Made on {{ made_at }} UTC</p>
{% for section, chart, table in sections %}
<section aria-labelledby="s{{ loop.index }}">
<h2 id="s{{ loop.index }}">{{ section.title }}</h2>
{% for warning in section.warnings %}
<p><b>Warning:</b> {{ warning }}</p>
{% endfor %}
{% if section.error %}
<p class="bad"><b>This report failed:</b> {{ section.error }}</p>
{% elif not table.rows %}
<p>No data in this period.</p>
{% else %}
{{ chart }}
<div class="wide" role="region" aria-labelledby="s{{ loop.index }}" tabindex="0"><table>
<thead><tr>
{% for text, style in table.headings %}
<th scope="col" style="{{ style }}">{{ text }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>
{% for text, style in row %}
<td style="{{ style }}">{{ text }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% if table.note %}
<p class="soft">{{ table.note }}</p>
{% endif %}
{% if not section.complete %}
<p class="soft">The first {{ quantity(table.rows | length, "row") }}; the query returns more.</p>
{% endif %}
{% endif %}
{% if section.query_hash %}
<p class="soft">Query {{ section.query_hash }}{% if section.watermark %}, as of {{ section.watermark }}{% endif %}</p>
{% endif %}
</section>
{% endfor %}
</main>
</body>
</html>
"""


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals["quantity"] = quantity
    return environment.from_string(_PAGE)
