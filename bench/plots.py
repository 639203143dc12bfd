"""The pictures in `docs/bench`, drawn from the last records: `python -m bench.plots`, or at the end of a full run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from bench.figures import QUANTILES, Slice, Spread, paired, rates, spread
from bench.record import FOLDER, Record, last

PICTURES = Path("docs/bench")
GROWTH = (1, 10)  # millions
_OURS, _THEIRS, _RULE = "#2563eb", "#9ca3af", "#dc2626"
_WIDTH = 560
_LEAST, _MOST = 10, 400_000  # events per second
_MILLISECONDS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]


def draw(records: Path = FOLDER, pictures: Path = PICTURES) -> list[Path]:
    """Draw the pictures whose records exist; return the files."""
    singles, batches, latency = (last(part, records) for part in ("singles", "batches", "latency"))
    growth = {millions: record for millions in GROWTH if (record := last(f"growth-{millions}", records)) is not None}
    charts: dict[str, alt.LayerChart] = {}
    if singles is not None and batches is not None:
        charts["throughput"] = throughput(singles, batches)
    if latency is not None:
        charts["latency"] = latencies(latency)
    if growth:
        charts["growth"] = growths(growth)
    pictures.mkdir(parents=True, exist_ok=True)
    return [_save(chart, pictures / f"{name}.svg") for name, chart in charts.items()]


def throughput(singles: Record, batches: Record) -> alt.LayerChart:
    """Events per second next to their references."""
    bars = [
        ("bare Sanic route, stores nothing", singles.slices["bare"], False),
        ("POST /events, one API process", singles.slices["singles"], True),
        ("FastAPI + SQLAlchemy, one process", singles.slices["fastapi"], False),
        ("POST /events/batch, two API processes", batches.slices["batches"], True),
        ("bare COPY of the same rows", batches.slices["copy"], False),
    ]
    rows = [{"name": name, "ours": ours, **_bounds(spread(rates(slices)))} for name, slices, ours in bars]
    base = alt.Chart(pl.DataFrame(rows)).encode(y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)))
    scale = alt.Scale(type="log", domain=[_LEAST, _MOST], nice=False)
    shown = base.mark_bar().encode(
        x=alt.X(
            "median:Q",
            scale=scale,
            axis=alt.Axis(values=[10**exponent for exponent in range(1, 6)]),
            title="events per second (logarithmic; line: lowest to highest round)",
        ),
        x2=alt.datum(_LEAST),
        color=alt.condition("datum.ours", alt.value(_OURS), alt.value(_THEIRS)),
    )
    reach = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    label = base.mark_text(align="left", dx=6).encode(x="high:Q", text=alt.Text("median:Q", format=",.0f"))
    return _titled(alt.LayerChart(layer=[shown, reach, label]), "Ingest beside its references", singles)


def latencies(latency: Record) -> alt.LayerChart:
    """The distribution of latencies at half load, the median of the rounds at every half percent."""
    names = {"half": "POST /events, durable", "bare": "bare route, same requests"}
    rows = [
        {"series": name, "percent": percent, "ms": ms}
        for key, name in names.items()
        for percent, ms in _distribution(latency.slices[key])
    ]
    curve = (
        alt.Chart(pl.DataFrame(rows))
        .mark_line()
        .encode(
            x=alt.X("percent:Q", title="percent of requests answered within"),
            y=alt.Y(
                "ms:Q",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(values=_MILLISECONDS),
                title="milliseconds since due (logarithmic)",
            ),
            color=alt.Color(
                "series:N", title=None, scale=_colors(names.values()), legend=alt.Legend(orient="top-left")
            ),
        )
    )
    return _titled(alt.LayerChart(layer=[curve, _promise(25.0, "p99 promise: 25 ms")]), "Latency at half load", latency)


def growths(growth: dict[int, Record]) -> alt.LayerChart:
    """Throughput with millions of stored events, as a share of the throughput of a new database."""
    points = [{"millions": 0, "median": 1.0, "low": 1.0, "high": 1.0}]
    points += [
        {"millions": millions, **_bounds(spread(paired(rates(record.slices["full"]), rates(record.slices["new"]))))}
        for millions, record in growth.items()
    ]
    base = alt.Chart(pl.DataFrame(points)).encode(
        x=alt.X("millions:Q", scale=alt.Scale(domain=[0, max(GROWTH)]), title="millions of stored events")
    )
    scale = alt.Scale(domain=[0, 1.5])
    line = base.mark_line(point=True, color=_OURS).encode(
        y=alt.Y("median:Q", scale=scale, title="events/s ÷ new database's")
    )
    reach = base.mark_rule(color=_OURS).encode(y="low:Q", y2="high:Q")
    return _titled(alt.LayerChart(layer=[reach, line, _promise(0.8, "promise: 0.8")]), "Growth", growth[max(growth)])


def _distribution(slices: list[Slice]) -> Iterable[tuple[float, float]]:
    """Leave out the largest half percent: a single stall of the machine would set the scale."""
    for step in range(QUANTILES):
        yield step * 100 / QUANTILES, spread(slice_.latencies_ms[step] for slice_ in slices).median


def _bounds(figure: Spread) -> dict[str, float]:
    return {"median": figure.median, "low": figure.low, "high": figure.high}


def _promise(bound: float, text: str) -> alt.LayerChart:
    base = alt.Chart(pl.DataFrame([{"bound": bound, "text": text}]))
    rule = base.mark_rule(color=_RULE, strokeDash=[4, 3]).encode(y="bound:Q")
    label = base.mark_text(color=_RULE, align="left", dx=4, dy=-6).encode(x=alt.value(0), y="bound:Q", text="text:N")
    return alt.LayerChart(layer=[rule, label])


def _colors(names: Iterable[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=[_OURS, _THEIRS])


def _titled(chart: alt.LayerChart, title: str, record: Record) -> alt.LayerChart:
    subtitle = f"{record.machine}, {record.at[:10]}"
    properties: dict[str, Any] = {"width": _WIDTH, "background": "white"}
    return chart.properties(title=alt.TitleParams(title, subtitle=subtitle, anchor="start"), **properties)


def _save(chart: alt.LayerChart, path: Path) -> Path:
    chart.save(str(path))
    return path


if __name__ == "__main__":
    draw()
