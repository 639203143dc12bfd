"""`workbench top`: a live view, in a terminal, of what all processes of this installation do.

Rates are the differences of two readings of the processes' metrics.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from api.cli import CommandError, network
from api.cli.errors import port
from api.metrics.serve import MergedMetrics, metrics_folder, read_published
from api.process import Spans
from api.settings import Settings

_INTERVAL_S = 2.0  # processes publish their metrics every second
_PRINTED_WIDTH = 100  # columns, with --once
_MAX_ROWS = 8
_LATE_S = 5.0
_MEGABYTE = 1_048_576


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, help="port of the API (default: that of the running `workbench up`)")
    parser.add_argument("--url", help="read http://HOST:PORT/metrics of another machine instead")
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> None:
    if args.url is None and args.data_dir is None:
        network.require_own_data_dir(settings.data_dir)
    api_port = args.port or network.ports_of(settings.data_dir)[0]

    def read() -> MetricsReading:
        if args.url is not None:
            reading = MetricsReading.of(text_string_to_metric_families(network.read_metrics(args.url)))
        else:
            reading = MetricsReading.of(MergedMetrics(read_published(metrics_folder(settings.data_dir))).collect())
        if not reading.processes():
            raise CommandError("no metrics found in this data folder; is the service running? See --data-dir")
        return reading

    def api_status() -> str:
        if args.url is not None:
            return "at another address"
        match network.status(api_port, "/readyz"):
            case 200:
                return "ready"
            case None:
                return f"no answer on port {api_port}"
            case status:
                return f"not ready ({status})"

    def screens() -> Iterator[RenderableType]:
        before = read()
        while True:
            time.sleep(_INTERVAL_S)
            after = read()
            yield render(MetricsDelta(before, after), api_status())
            before = after

    if args.once:
        # For output that is not a terminal rich assumes 80 columns, and the tables are wider.
        Console(width=_PRINTED_WIDTH).print(next(screens()))
        return
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for screen in screens():
            live.update(screen, refresh=True)


class MetricsReading(msgspec.Struct, frozen=True):
    """The samples of all processes at one moment."""

    samples: list[Sample]

    @classmethod
    def of(cls, families: Iterable[Metric]) -> "MetricsReading":
        return cls([sample for family in families for sample in family.samples])

    def named(self, name: str) -> Iterator[Sample]:
        """Yield the samples of a metric; its prefix `workbench_` may be left out."""
        return (sample for sample in self.samples if sample.name in (f"workbench_{name}", name))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all processes of the samples that have these labels."""
        return sum(sample.value for sample in self.named(name) if labels.items() <= sample.labels.items())

    def largest(self, name: str) -> float | None:
        """Return the largest value of any process, or None without values."""
        values = [sample.value for sample in self.named(name)]
        return max((value for value in values if value == value), default=None)  # NaN is not equal to itself

    def processes(self) -> list[str]:
        return sorted({sample.labels["process"] for sample in self.named("process_info")})


class MetricsDelta(msgspec.Struct, frozen=True):
    before: MetricsReading
    after: MetricsReading

    def rates(self, name: str, *labels: str) -> defaultdict[tuple[str, ...], float]:
        """Return the growth of a counter per second, by some of its labels; 0 for a process that has just started."""
        # The metrics of each process have the time of its own clock.
        clocks_before, clocks_after = (
            {sample.labels["process"]: sample.value for sample in reading.named("clock_seconds")}
            for reading in (self.before, self.after)
        )
        previous = {_sample_key(sample): sample.value for sample in self.before.named(name)}
        rates: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for sample in self.after.named(name):
            process = sample.labels["process"]
            elapsed_s = clocks_after[process] - clocks_before[process] if process in clocks_before else 0.0
            growth = sample.value - previous.get(_sample_key(sample), 0.0)
            rates[tuple(sample.labels[label] for label in labels)] += growth / elapsed_s if elapsed_s else 0.0
        return rates

    def quantile(self, name: str, fraction: float) -> float | None:
        """Return the upper bound (seconds) of the bucket that contains a quantile, or None if nothing was counted."""
        counts = self.rates(f"{name}_bucket", "le")
        total = counts["+Inf",]
        for bound in Spans.BOUNDS:
            if total and counts[str(bound),] >= fraction * total:
                return bound
        return None


def _sample_key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))


def render(delta: MetricsDelta, api_status: str) -> RenderableType:
    """Return the screen: a headline, and tables of processes, events and steps."""
    events = _table("events", "per second", "total")
    _add_rows(events, delta, "events_total", ["outcome"])
    _add_rows(events, delta, "events_rejected_total", ["field"], "rejected: ")
    bounds = [delta.quantile("ingest_seconds", fraction) for fraction in (0.5, 0.99)]
    p50, p99 = ("-" if bound is None else f"≤ {bound * 1000:g} ms" for bound in bounds)
    events.caption = f"response time: p50 {p50}, p99 {p99}"
    steps = _table("steps", "per second", "total")
    _add_rows(steps, delta, "steps_total", ["kind", "outcome"])
    return Group(_headline(delta, api_status), Text(), _process_table(delta), Text(), events, Text(), steps)


def _headline(delta: MetricsDelta, api_status: str) -> Text:
    line = Text(f"API {api_status}", style="green" if api_status.startswith("ready") else "bold red")
    late_s = delta.after.largest("oldest_due_seconds")
    if late_s is not None:
        if late_s < 1:
            late = f"{late_s * 1000:.0f} ms"
        else:
            late = f"{late_s:.0f} s" if late_s < 120 else f"{late_s / 60:.0f} min"
        line.append(f"   oldest due entry {late} late", style="bold red" if late_s > _LATE_S else "default")
    waiting, sockets = delta.after.total("ingest_waiting"), delta.after.total("sockets")
    line.append(f"   {waiting:,.0f} events wait   {sockets:,.0f} sockets", style="default")
    return line


def _process_table(delta: MetricsDelta) -> Table:
    table = _table("process", "CPU", "memory", "responses/s", "events/s", "steps/s", "connections")
    cpu = delta.rates("process_cpu_seconds_total", "process")
    counters = [delta.rates(name, "process") for name in ("http_requests_total", "events_total", "steps_total")]
    for process in delta.after.processes():
        busy, size = (delta.after.total(f"pool_{value}", process=process) for value in ("busy", "connections"))
        memory = delta.after.total("process_resident_memory_bytes", process=process) / _MEGABYTE
        table.add_row(
            process,
            f"{cpu[process,]:.0%}",
            f"{memory:,.0f} MB",
            *(f"{rates[process,]:,.0f}" for rates in counters),
            f"{busy:.0f} of {size:.0f}",
        )
    return table


def _add_rows(table: Table, delta: MetricsDelta, name: str, labels: list[str], prefix: str = "") -> None:
    rates = delta.rates(name, *labels)
    for values in sorted(rates, key=lambda values: (-rates[values], values))[:_MAX_ROWS]:
        total = delta.after.total(name, **dict(zip(labels, values, strict=True)))
        table.add_row(prefix + " ".join(values), f"{rates[values]:,.1f}", f"{total:,.0f}")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    table.add_column(first, min_width=34, no_wrap=True)
    for header in others:
        table.add_column(header, justify="right", no_wrap=True)
    return table
