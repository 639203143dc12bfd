"""`workbench top`: a live view, in a terminal, of what all processes of this installation do."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from api.cli import CommandError, network
from api.cli.errors import Subparsers, port
from api.settings import Settings

_INTERVAL_S = 2.0  # processes publish their metrics every second
_PRINTED_WIDTH = 100  # columns, with --once


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("top", help="show what all processes do, live")
    parser.add_argument("--port", type=port, default=8000, help="port of the API (default %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="the folder with the processes' metrics (default .workbench)")
    parser.add_argument("--url", help="read http://HOST:PORT/metrics of another machine instead")
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Show the screen until interrupted."""
    from prometheus_client.parser import text_string_to_metric_families
    from rich.console import Console, RenderableType
    from rich.live import Live

    from api.metrics.serve import MergedMetrics, metrics_folder, read_published
    from api.metrics.top import MetricsDelta, MetricsReading, render

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
        match network.status(args.port, "/readyz"):
            case 200:
                return "ready"
            case None:
                return f"no answer on port {args.port}"
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
        return 0
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for screen in screens():
            live.update(screen, refresh=True)
    return 0
