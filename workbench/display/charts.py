"""The pictures of the ready-made questions and of backtests, drawn by Altair and shown as SVG: they need no network and stay in saved notebooks.

Colours are mid-tones that read on light and dark pages.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import altair as alt
import polars as pl
import vl_convert
from markupsafe import Markup
from polars import selectors

from workbench.display.page import image

alt.renderers.enable("svg")  # Altair's own default asks the network, and JupyterLab knows only an older Vega

Chart: TypeAlias = alt.Chart | alt.LayerChart

_BLUE, _GREY = "#6166dc", "#8a93a3"
_WIDTH, _HEIGHT = 560, 200
_WIDEST, _CELL = 960, 40  # a cell in which a number fits
_FONT = "Verdana, DejaVu Sans, sans-serif"  # named, so that a page draws what was measured here: labels are not cut
_UTC = alt.Scale(type="utc")
_COLOURS = [_BLUE, "#27875a", "#a9690c", "#c6423a", _GREY]
_PALETTE = alt.Scale(range=_COLOURS)
_OUTCOMES = alt.Scale(domain=["sent", "failed", "skipped", "unknown"], range=["#27875a", "#c6423a", _GREY, "#a9690c"])


def draw(name: str, frame: pl.DataFrame) -> Chart:
    """Return the picture of a report."""
    chart: Chart = _DRAWN[name](frame.with_columns(selectors.decimal().cast(pl.Float64)))
    return chart


def picture(chart: Chart) -> Markup:
    """Return a chart as an `<img>` that needs nothing from outside."""
    styled = (
        chart.configure(background="transparent", font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(labelColor=_GREY, titleColor=_GREY, gridOpacity=0.25, domainColor=_GREY, tickColor=_GREY)
        .configure_legend(labelColor=_GREY, titleColor=_GREY)
    )
    source = vl_convert.vegalite_to_svg(styled.to_dict())
    return image(source, *_size(source), "the same numbers as in the table below")


def _size(source: str) -> tuple[float, float]:
    width, height = (source.partition(f' {side}="')[2].partition('"')[0] for side in ("width", "height"))
    return float(width), float(height)


def _funnel(frame: pl.DataFrame) -> Any:
    steps = [
        f"{step}. {event}" for step, event in frame.select("step", "event").unique(maintain_order=True).iter_rows()
    ]
    named = frame.with_columns(
        step=pl.format("{}. {}", "step", "event"),
        said=pl.when(pl.col("of_first").is_not_null()).then(_percent("of_first")),
    )
    if "part" in frame.columns:
        return _split_funnel(named.with_columns(pl.col("part").fill_null("(without)")), steps)
    base = _chart(named).encode(y=alt.Y("step:N", sort=steps, title=None))
    bars = base.mark_bar(color=_BLUE).encode(x=alt.X("contacts:Q", title="contacts"))
    labels = base.mark_text(align="left", dx=6, color=_GREY).encode(x="contacts:Q", text="said:N")
    return alt.LayerChart(layer=[bars, labels])


def _split_funnel(named: pl.DataFrame, steps: list[str]) -> Chart:
    """Draw the largest parts, which come first, side by side; the others are in the table."""
    largest = named["part"].unique(maintain_order=True).head(len(_COLOURS)).to_list()
    base = _chart(named.filter(pl.col("part").is_in(largest)), height=alt.Step(18, **{"for": "offset"})).encode(
        x=alt.X("of_first:Q", axis=alt.Axis(format="%"), title="of the first step"),
        y=alt.Y("step:N", sort=steps, title=None, scale=alt.Scale(paddingInner=0.15, paddingOuter=0.05)),
        yOffset=alt.YOffset("part:N", sort=largest),
    )
    legend = None if named["part"].n_unique() == len(largest) else f"the {len(largest)} largest"
    beside = alt.Legend(offset=52)  # room for the labels of whole bars
    bars = base.mark_bar().encode(color=alt.Color("part:N", title=legend, sort=largest, scale=_PALETTE, legend=beside))
    labels = base.mark_text(align="left", dx=4, fontSize=10, color=_GREY).encode(text="said:N")
    return alt.LayerChart(layer=[bars, labels])


def _retention(frame: pl.DataFrame) -> Chart:
    later = frame.filter(pl.col("number") > 0)[
        "share"
    ]  # the first period of a cohort is itself: beside it all others are pale
    return _cohort_map(frame, "share", _percent("share"), _most(later))


def _cohorts(frame: pl.DataFrame) -> Chart:
    said = pl.col("so_far").cast(pl.Decimal(38, 2)).cast(pl.String)
    return _cohort_map(frame, "so_far", said, _most(frame["so_far"]))


def _most(values: pl.Series) -> float:
    return max(values.cast(pl.Float64).to_list(), default=0.0) or 1.0


def _cohort_map(frame: pl.DataFrame, value: str, said: pl.Expr, most: float) -> Chart:
    cohort = pl.format("{} ({})", pl.col("cohort").dt.strftime("%Y-%m-%d"), "size")
    rows = frame.with_columns(cohort=cohort, said=said, dark=pl.col(value) > most / 2)
    columns = rows["number"].n_unique()
    step = max(_WIDTH, min(columns * _CELL, _WIDEST)) / max(columns, 1)
    base = alt.Chart(rows, width=alt.Step(step), height=alt.Step(22)).encode(
        x=alt.X("number:O", title="periods later", axis=alt.Axis(labelAngle=0)), y=alt.Y("cohort:N", title=None)
    )
    cells = base.mark_rect().encode(
        color=alt.Color(f"{value}:Q", scale=alt.Scale(scheme="purples", domain=[0, most], clamp=True), legend=None)
    )
    ink = alt.condition("datum.dark", alt.value("white"), alt.value("#3b3f52"))
    numbers = base.mark_text(fontSize=10).encode(text="said:N", color=ink)
    return alt.LayerChart(layer=[cells, numbers] if step >= _CELL else [cells])


def _active_users(frame: pl.DataFrame) -> Any:
    long = frame.rename({"contacts": "active"}).unpivot(["active", "new", "stayed"], index="at", variable_name="who")
    return (
        _chart(long, height=_HEIGHT)
        .mark_line(point=frame.height < 40)
        .encode(
            x=alt.X("at:T", title=None, scale=_UTC),
            y=alt.Y("value:Q", title="contacts"),
            color=alt.Color("who:N", title=None, sort=None, scale=_PALETTE),
        )
    )


def _segment_sizes(frame: pl.DataFrame) -> Any:
    points = alt.OverlayMarkDef(color=_BLUE) if frame.height < 40 else False
    brief = frame.select(pl.col("at").max() - pl.col("at").min() < timedelta(minutes=1)).item()
    labels = "%H:%M:%S" if brief else alt.Undefined  # not parts of a second
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
    rows = frame.head(20)
    named = rows if "part" in rows.columns else rows.with_columns(part=pl.lit("all"))
    return _bars(named.with_columns(pl.col("part").fill_null("(without)")), "part", "total", "total")


def _time_to_convert(frame: pl.DataFrame) -> Chart:
    reached = frame.filter(pl.col("share_so_far") > 0)
    spans = [_span(seconds) for seconds in reached["within_seconds"]]
    rows = reached.with_columns(within=pl.Series(spans, dtype=pl.String))
    base = _chart(rows, height=_HEIGHT).encode(
        x=alt.X("within:N", sort=spans, title="within", axis=alt.Axis(labelAngle=0))
    )
    share = alt.Y("share:Q", title="of those who started", axis=alt.Axis(format="%"))
    return alt.LayerChart(
        layer=[
            base.mark_bar(color=_BLUE).encode(y=share),
            base.mark_line(color=_GREY, point=alt.OverlayMarkDef(color=_GREY)).encode(y="share_so_far:Q"),
        ]
    )


def _message_performance(frame: pl.DataFrame) -> Any:
    outcomes = [name for name in ("sent", "failed", "skipped", "unknown") if frame[name].sum()]
    rows = frame.with_columns(where=pl.format("{} ({})", "node_id", "channel"))
    long = rows.unpivot(outcomes, index="where", variable_name="outcome", value_name="count")
    return (
        _chart(long)
        .mark_bar()
        .encode(
            x=alt.X("sum(count):Q", title="messages"),
            y=alt.Y("where:N", sort="-x", title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color("outcome:N", title=None, scale=_OUTCOMES),
        )
    )


def _backtest(frame: pl.DataFrame) -> Any:
    compared = "entries_before" in frame.columns
    long = frame.unpivot(index="day", variable_name="name", value_name="count").with_columns(
        what=pl.col("name").str.strip_suffix("_before"), before=pl.col("name").str.ends_with("_before")
    )
    legend = alt.Legend(orient="top", title="dashed: before" if compared else None)
    lines = (
        _chart(long, height=_HEIGHT)
        .mark_line(point=frame.height < 40)
        .encode(
            x=alt.X("day:T", title=None),
            y=alt.Y("count:Q", title=None),
            color=alt.Color("what:N", sort=None, scale=_PALETTE, legend=legend),
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


def _span(seconds: float) -> str:
    for size, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"


_DRAWN: dict[str, Callable[[pl.DataFrame], Any]] = {
    "backtest": _backtest,
    "funnel": _funnel,
    "retention": _retention,
    "cohorts": _cohorts,
    "active_users": _active_users,
    "paths": _paths,
    "revenue": _revenue,
    "time_to_convert": _time_to_convert,
    "message_performance": _message_performance,
    "segment_sizes": _segment_sizes,
}
