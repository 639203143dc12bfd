"""`workbench top`: what all processes of this installation do, live in a terminal, until Ctrl-C."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from api.cli import CommandError, network
from api.cli.errors import Subparsers, port
from api.settings import Settings

if TYPE_CHECKING:
    from api.metrics.top import MetricsDelta, MetricsReading


_EVERY = 2.0  # seconds; the numbers are new every second


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("top", help="show what all processes do, live")
    parser.add_argument("--port", type=port, default=8000, help="port of the API (default %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="where the processes leave their numbers (default .workbench)")
    parser.add_argument("--url", help="read http://HOST:PORT/metrics of another machine instead")
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Show until interrupted."""
    from rich.console import Console
    from rich.live import Live

    from api.metrics.top import render

    console = Console(width=100) if args.once else Console()
    screens = (render(change, _ready(args)) for change in _changes(args, settings))
    if args.once:
        console.print(next(screens))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen, refresh=True)
    return 0


def _changes(args: argparse.Namespace, settings: Settings) -> "Iterator[MetricsDelta]":
    from api.metrics.top import MetricsDelta

    before = _reading(args, settings)
    while True:
        time.sleep(_EVERY)
        after = _reading(args, settings)
        yield MetricsDelta(before, after)
        before = after


def _reading(args: argparse.Namespace, settings: Settings) -> "MetricsReading":
    from prometheus_client.parser import text_string_to_metric_families

    from api.metrics.serve import MergedMetrics, metrics_folder, read_published
    from api.metrics.top import MetricsReading

    if args.url is not None:
        reading = MetricsReading.of(text_string_to_metric_families(network.text(args.url)))
    else:
        reading = MetricsReading.of(MergedMetrics(read_published(metrics_folder(settings.data_dir))).collect())
    if not reading.processes():
        raise CommandError("no metrics found in this data folder; is the service running? See --data-dir")
    return reading


def _ready(args: argparse.Namespace) -> str:
    if args.url is not None:
        return "at another address"
    status = network.status(args.port, "/readyz")
    return "ready" if status == 200 else f"no answer on port {args.port}" if status is None else f"not ready ({status})"
