"""`workbench top`: what all processes of this installation do, live in a terminal, until Ctrl-C."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from api.commands import CommandError, http
from api.commands.arguments import Subparsers, port
from api.settings import Settings

if TYPE_CHECKING:  # imported when needed: the command line must start fast
    from api.observe.readings import Change, Reading

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

    from api.observe.picture import picture

    console = Console(width=100) if args.once else Console()
    screens = (picture(change, _ready(args)) for change in _changes(args, settings))
    if args.once:
        console.print(next(screens))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen, refresh=True)
    return 0


def _changes(args: argparse.Namespace, settings: Settings) -> "Iterator[Change]":
    from api.observe.readings import Change

    before = _reading(args, settings)
    while True:
        time.sleep(_EVERY)
        after = _reading(args, settings)
        yield Change(before, after)
        before = after


def _reading(args: argparse.Namespace, settings: Settings) -> "Reading":
    from prometheus_client.parser import text_string_to_metric_families

    from api.observe.merged import Merged
    from api.observe.published import folder_in, read_published
    from api.observe.readings import read

    if args.url is not None:
        reading = read(text_string_to_metric_families(http.text(args.url)))
    else:
        reading = read(Merged(read_published(folder_in(settings.data_dir))).collect())
    if not reading.processes():
        raise CommandError("no process of ours tells its numbers there; is this the data folder? See --data-dir")
    return reading


def _ready(args: argparse.Namespace) -> str:
    if args.url is not None:
        return "at another address"
    status = http.status(args.port, "/readyz")
    return "ready" if status == 200 else f"is silent on port {args.port}" if status is None else f"not ready ({status})"
