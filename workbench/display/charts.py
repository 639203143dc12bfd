"""Charts of built-in reports and backtests, and `Report`, the frame that displays its chart, its table and its SQL.

Altair draws the charts and vl-convert renders them to SVG here, so they need no network and stay in saved notebooks.
Both are optional (`pip install "event-workbench[notebook]"`). Colours are mid-tones that work on light and dark
pages.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import polars as pl
import vl_convert
from polars import selectors

from workbench.display.frame import ShownFrame
from workbench.display.html import TableColumn, TableView, html, image, moment
from workbench.frames import Result
from workbench.language.page import UNITS_S, RelativeTime, cell_text, column_title, quantity

# jsonschema, which Altair imports, builds a grammar of IRIs with it if it is installed. No chart has an IRI, and the
# grammar takes longer (1.7 s) than everything else before the first chart. The price: in this process, jsonschema does
# not check the formats "iri" and "iri-reference".
_IRI_GRAMMAR = "rfc3987_syntax"
sys.modules.setdefault(_IRI_GRAMMAR, None)  # type: ignore[arg-type]
import altair as alt  # noqa: E402

if sys.modules[_IRI_GRAMMAR] is None:
    del sys.modules[_IRI_GRAMMAR]

alt.renderers.enable("svg")  # the default renderer loads Vega from the network

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.VConcatChart

_BLUE, _GREY = "#6166dc", "#8a93a3"
_WIDTH, _HEIGHT = 560, 200
_MAX_WIDTH, _MIN_CELL_WIDTH = 960, 40  # pixels; numbers fit into cells of 40
_MAX_BARS = 20
_DASHES = [3, 3]  # pixels
_FONT = "Verdana, DejaVu Sans, sans-serif"  # a named font: labels are measured here and drawn by the browser
_UTC = alt.Scale(type="utc")
_COLOURS = [_BLUE, "#27875a", "#a9690c", "#c6423a", _GREY]
_PALETTE = alt.Scale(range=_COLOURS)
_OUTCOMES = ("sent", "failed", "skipped", "unknown")
_OUTCOME_SCALE = alt.Scale(domain=[*_OUTCOMES], range=["#27875a", "#c6423a", _GREY, "#a9690c"])

_MAX_TABLE_ROWS = 24


def chart(name: str, frame: pl.DataFrame, every: str = "period") -> Chart:
    """Return the chart of a report; `every`: its unit of time."""
    # Vega calculates with the doubles of JavaScript; the table below the chart has the exact decimals.
    floats = frame.with_columns(selectors.decimal().cast(pl.Float64))
    if "segment" in frame.columns:
        charts = [
            chart(name, of_segment.drop("segment"), every).properties(title=segment)
            for (segment,), of_segment in frame.partition_by("segment", as_dict=True).items()
        ]
        same: Chart = alt.vconcat(*charts).resolve_scale(x="shared")
        return same.resolve_scale(y="shared") if "at" in frame.columns else same
    if name in ("retention", "cohorts"):
        return _cohort_map(floats, every, "share" if name == "retention" else "so_far")
    drawn: Chart = _CHARTS[name](floats)
    return drawn


def chart_html(name: str, frame: pl.DataFrame, every: str = "period") -> str:
    """Return the chart as an `<img>`; nothing if the frame is empty."""
    if not frame.height:
        return ""
    styled = (
        chart(name, frame, every)
        .configure(background="transparent", font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_GREY,
            labelSeparation=8,  # pixels; labels that are nearer are left out
            titleColor=_GREY,
            gridOpacity=0.25,
            domainColor=_GREY,
            tickColor=_GREY,
        )
        .configure_legend(labelColor=_GREY, titleColor=_GREY)
    )
    source = vl_convert.vegalite_to_svg(styled.to_dict())
    width, height = (float(source.partition(f' {side}="')[2].partition('"')[0]) for side in ("width", "height"))
    return image(source, width, height, "the same numbers as in the table below")


class Report(ShownFrame, Result):
    """A built-in report, displayed as a chart with its table and SQL.

    `wb.sql(report.statement, as_of=report, **report.params)` runs the same query again.
    """

    titles: Mapping[str, str] = {}
    relative: Mapping[str, RelativeTime] = {}
    """The values of the query that move with the time at which it runs again, on the page of a schedule."""

    _name: str
    _every: str

    def chart(self) -> Chart:
        """Return the chart as an Altair chart, which can be modified."""
        return chart(self._name, pl.DataFrame(self), self._every)

    def _forget_query(self) -> None:
        # A frame that was changed in place is not the result of the query, so it loses the table as well.
        super()._forget_query()
        self.view = None

    def _repr_html_(self, **polars: Any) -> str:
        if self.view is None:
            return super()._repr_html_(**polars)
        picture = chart_html(self._name, pl.DataFrame(self), self._every)
        return html("report.html.j2", view=self.view, picture=picture, report=self, at=moment(self.watermark))


def report(rows: Result, name: str, title: str, warnings: Sequence[str] = ()) -> Report:
    """Return the result of a query as a report; `warnings`: sentences to show with it."""
    result = Report(rows)
    params = rows.params or {}
    result._every = params.get("every", "period")
    titles = {"number": result._every}
    if "part" in rows.columns:
        titles["part"] = params["by"][-1] if "by" in params else "segment"
    columns = [
        TableColumn(column_title(column, titles), number=kind.is_numeric()) for column, kind in rows.schema.items()
    ]
    cells = [
        [cell_text(column, value) for column, value in zip(rows.columns, row, strict=True)]
        for row in rows.head(_MAX_TABLE_ROWS).iter_rows()
    ]
    shortened = rows.height > _MAX_TABLE_ROWS
    note = f"{_MAX_TABLE_ROWS} of {quantity(rows.height, 'row')}; the frame has all of them." if shortened else ""
    result.view = TableView(columns, cells, title, "No data in this period.", note, warnings)
    result._name, result.titles = name, titles
    result.statement, result.params = rows.statement, rows.params
    result.query_hash, result.watermark = rows.query_hash, rows.watermark
    result.answered_from = rows.answered_from
    return result


def _funnel(frame: pl.DataFrame) -> Any:
    steps = [
        f"{step}. {event}" for step, event in frame.select("step", "event").unique(maintain_order=True).iter_rows()
    ]
    named = frame.with_columns(
        step=pl.format("{}. {}", "step", "event"),
        text=pl.when(pl.col("of_first").is_not_null()).then(_percent("of_first")),
    )
    if "part" in frame.columns:
        return _split_funnel(named.with_columns(pl.col("part").fill_null("(without)")), steps)
    base = _chart(named).encode(y=alt.Y("step:N", sort=steps, title=None))
    bars = base.mark_bar(color=_BLUE).encode(x=alt.X("contacts:Q", title="contacts"))
    labels = base.mark_text(align="left", dx=6, color=_GREY).encode(x="contacts:Q", text="text:N")
    return alt.LayerChart(layer=[bars, labels])


def _split_funnel(named: pl.DataFrame, steps: list[str]) -> Chart:
    """Return the funnel by group, for the largest groups; the table below the chart has all of them."""
    # The rows of the report are ordered by the size of their group.
    largest = named["part"].unique(maintain_order=True).head(len(_COLOURS)).to_list()
    base = _chart(named.filter(pl.col("part").is_in(largest)), height=alt.Step(18, **{"for": "offset"})).encode(
        x=alt.X("of_first:Q", axis=alt.Axis(format="%"), title="% of step 1"),
        y=alt.Y("step:N", sort=steps, title=None, scale=alt.Scale(paddingInner=0.15, paddingOuter=0.05)),
        yOffset=alt.YOffset("part:N", sort=largest),
    )
    title = None if named["part"].n_unique() == len(largest) else f"the {len(largest)} largest"
    legend = alt.Legend(offset=52)  # pixels; leaves room for the label of a bar of 100 %
    bars = base.mark_bar().encode(color=alt.Color("part:N", title=title, sort=largest, scale=_PALETTE, legend=legend))
    labels = base.mark_text(align="left", dx=4, fontSize=10, color=_GREY).encode(text="text:N")
    return alt.LayerChart(layer=[bars, labels])


def _cohort_map(frame: pl.DataFrame, every: str, value: str) -> Chart:
    if value == "share":
        # Period 0 is the cohort itself and always 100 %. If the colours were scaled to it, later periods would be pale.
        text, scaled_to = _percent("share"), frame.filter(pl.col("number") > 0)["share"]
    else:
        text, scaled_to = pl.col(value).cast(pl.Decimal(38, 2)).cast(pl.String), frame[value]
    largest = max(scaled_to.cast(pl.Float64).to_list(), default=0.0) or 1.0
    cohort = pl.format("{} ({})", pl.col("cohort").dt.strftime("%Y-%m-%d"), "size")
    rows = frame.with_columns(cohort=cohort, text=text, dark=pl.col(value) > largest / 2)
    columns = rows["number"].n_unique()
    # Cells shrink when there are many; in cells narrower than a number, the numbers are left out.
    step = max(_WIDTH, min(columns * _MIN_CELL_WIDTH, _MAX_WIDTH)) / max(columns, 1)
    base = alt.Chart(rows, width=alt.Step(step), height=alt.Step(22)).encode(
        x=alt.X("number:O", title=f"{every}s later", axis=alt.Axis(labelAngle=0)), y=alt.Y("cohort:N", title=None)
    )
    cells = base.mark_rect().encode(
        color=alt.Color(f"{value}:Q", scale=alt.Scale(scheme="purples", domain=[0, largest], clamp=True), legend=None)
    )
    ink = alt.condition("datum.dark", alt.value("white"), alt.value("#3b3f52"))
    numbers = base.mark_text(fontSize=10).encode(text="text:N", color=ink)
    in_part = base.transform_filter("!datum.complete").mark_rect(fillOpacity=0, stroke="#3b3f52", strokeDash=_DASHES)
    return alt.LayerChart(layer=[cells, in_part, numbers] if step >= _MIN_CELL_WIDTH else [cells, in_part])


def _active_users(frame: pl.DataFrame) -> Any:
    named = frame.rename({"contacts": "Active", "new": "New", "stayed": "Returning"})
    # The lines from and to a period that the report does not cover entirely are dashed.
    whole = pl.col("complete")
    named = named.with_columns(dashed=~whole | ~whole.shift(1, fill_value=True) | ~whole.shift(-1, fill_value=True))
    long = named.unpivot(["Active", "New", "Returning"], index=["at", "complete", "dashed"], variable_name="group")
    base = _chart(long, height=_HEIGHT).encode(
        x=alt.X("at:T", title=None, scale=_UTC),
        y=alt.Y("value:Q", title="contacts"),
        color=alt.Color("group:N", title=None, sort=None, scale=_PALETTE),
    )
    points = frame.height < 40
    whole_lines = base.transform_filter("datum.complete").mark_line(point=points)
    # Without a value where the line is not dashed, it ends there.
    dashed = base.transform_calculate(value="datum.dashed ? datum.value : null")
    dashed_lines = dashed.mark_line(point=points, strokeDash=_DASHES)
    return alt.LayerChart(layer=[whole_lines, dashed_lines])


def _segment_sizes(frame: pl.DataFrame) -> Any:
    points = alt.OverlayMarkDef(color=_BLUE) if frame.height < 40 else False
    brief = frame.select(pl.col("at").max() - pl.col("at").min() < timedelta(minutes=1)).item()
    labels = "%H:%M:%S" if brief else alt.Undefined  # below a minute the default shows milliseconds
    return (
        _chart(frame, height=_HEIGHT)
        .mark_line(point=points, interpolate="step-after", color=_BLUE)
        .encode(
            x=alt.X("at:T", title=None, scale=_UTC, axis=alt.Axis(tickCount=8, labelOverlap=True, format=labels)),
            y=alt.Y("size:Q", title="contacts", axis=alt.Axis(format=",d", tickMinStep=1)),
        )
    )


def _paths(frame: pl.DataFrame) -> Any:
    rows = frame.head(15).with_columns(pl.col("path").list.join(" → "))
    return _bars(rows, "path", "contacts", "contacts")


def _revenue(frame: pl.DataFrame) -> Any:
    named = frame if "part" in frame.columns else frame.with_columns(part=pl.lit("all"))
    named = named.with_columns(pl.col("part").fill_null("(without)"))
    if "at" not in named.columns:
        return _bars(named.head(_MAX_BARS), "part", "total", "total")
    largest = named.group_by("part").agg(pl.col("total").sum()).top_k(len(_COLOURS) - 1, by="total")["part"].to_list()
    part = pl.when(pl.col("part").is_in(largest)).then("part").otherwise(pl.lit("(others)"))
    base = _chart(named.with_columns(part=part), height=_HEIGHT).encode(
        x=alt.X("at:T", title=None, scale=_UTC),
        y=alt.Y("total:Q", title="total"),
        color=alt.Color("part:N", title=None, scale=_PALETTE),
    )
    whole = base.transform_filter("datum.complete").mark_bar()
    in_part = base.transform_filter("!datum.complete").mark_bar(fillOpacity=0.3, stroke=_GREY, strokeDash=_DASHES)
    return alt.LayerChart(layer=[whole, in_part])


def _time_to_convert(frame: pl.DataFrame) -> Chart:
    reached = frame.filter(pl.col("share_so_far") > 0)
    spans = []
    for seconds in reached["within_seconds"]:
        size, noun = next(unit for unit in UNITS_S if seconds % unit[0] == 0)
        spans.append(f"{seconds // size}{noun[0]}")
    rows = reached.with_columns(within=pl.Series(spans, dtype=pl.String))
    base = _chart(rows, height=_HEIGHT).encode(
        x=alt.X("within:N", sort=spans, title="within", axis=alt.Axis(labelAngle=0))
    )
    share = alt.Y("share:Q", title="% of contacts that started", axis=alt.Axis(format="%"))
    return alt.LayerChart(
        layer=[
            base.mark_bar(color=_BLUE).encode(y=share),
            base.mark_line(color=_GREY, point=alt.OverlayMarkDef(color=_GREY)).encode(y="share_so_far:Q"),
        ]
    )


def _message_performance(frame: pl.DataFrame) -> Any:
    outcomes = [name for name in _OUTCOMES if frame[name].sum()]
    rows = frame.with_columns(where=pl.format("{} ({})", "node_id", "channel"))
    long = rows.unpivot(outcomes, index="where", variable_name="outcome", value_name="count")
    return (
        _chart(long)
        .mark_bar()
        .encode(
            x=alt.X("sum(count):Q", title="messages"),
            y=alt.Y("where:N", sort="-x", title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color("outcome:N", title=None, scale=_OUTCOME_SCALE),
        )
    )


def _backtest(frame: pl.DataFrame) -> Any:
    compared = "entries_before" in frame.columns
    long = frame.unpivot(index="day", variable_name="name", value_name="count").with_columns(
        metric=pl.col("name").str.strip_suffix("_before"), before=pl.col("name").str.ends_with("_before")
    )
    legend = alt.Legend(orient="top", title="dashed: before" if compared else None)
    lines = (
        _chart(long, height=_HEIGHT)
        .mark_line(point=frame.height < 40)
        .encode(
            x=alt.X("day:T", title=None),
            y=alt.Y("count:Q", title=None),
            color=alt.Color("metric:N", sort=None, scale=_PALETTE, legend=legend),
        )
    )
    return lines.encode(strokeDash=alt.StrokeDash("before:N", legend=None)) if compared else lines


def _bars(frame: pl.DataFrame, name: str, value: str, title: str) -> Any:
    names = alt.Y(f"{name}:N", sort=None, title=None, axis=alt.Axis(labelLimit=360))
    return _chart(frame).mark_bar(color=_BLUE).encode(x=alt.X(f"{value}:Q", title=title), y=names)


def _chart(frame: pl.DataFrame, **more: Any) -> Any:
    return alt.Chart(frame, width=_WIDTH, **more)


def _percent(column: str) -> pl.Expr:
    return pl.format("{}%", (pl.col(column) * 100).round(1))


_CHARTS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "backtest": _backtest,
    "funnel": _funnel,
    "active_users": _active_users,
    "paths": _paths,
    "revenue": _revenue,
    "time_to_convert": _time_to_convert,
    "message_performance": _message_performance,
    "segment_sizes": _segment_sizes,
}
