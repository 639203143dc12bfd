"""`workbench import FILE… --org NAME`: import history from files of several formats. It never triggers automations.

Progress is a bar in a terminal and a line every few seconds elsewhere; both go to stderr. The bar is exactly as wide as
the terminal and has no colours: a notebook cell overwrites a line with the next one without clearing it, so the rest of
a longer line would stay visible, and it counts escape codes as characters.
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from api.cli.database import database
from api.cli.errors import Subparsers, note, say
from api.cli.secret import root_secret
from api.clock import monotonic_ns
from api.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

    from api.imports.importer import ImportStatus

_LINE_INTERVAL_S = 5.0
_SPEED_WINDOW_S = 10.0
_SYSTEMS = {"segment": "Segment", "posthog": "PostHog"}
_RESUME = "imported events are kept; run the same command again to continue"

_DESCRIPTION = """\
Import past events of an organization, each with the time at which it happened. Automations are not triggered.

Files: .ndjson .jsonl .csv .tsv .parquet, the text formats also as .gz or .zst; a folder means all such files in it.
Exports of Segment and PostHog are recognised. docs/import-and-export.md describes how each format is read.

After an interruption (Ctrl-C, kill -9, a database restart) run the same command again to continue. No event is stored
twice: an event is identified by its idempotencyKey or, without one, by its name, contact and time.
"""
_EXAMPLES = """\
examples:
  workbench import events.ndjson --org acme
  workbench import orders.csv --org acme --map customer=contact.externalId --map ts=occurredAt --map total=payload.total
  workbench import segment-logs/ --org acme --from segment
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "import",
        help="import history from files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a file, or a folder of files")
    parser.add_argument("--org", required=True, metavar="NAME", help="the organization to import into")
    parser.add_argument(
        "--from",
        dest="dialect",
        choices=("workbench", "segment", "posthog"),
        help="the system that exported the files (default: detected)",
    )
    parser.add_argument(
        "--map",
        dest="columns",
        metavar="COLUMN=FIELD",
        action="append",
        default=[],
        type=column_field,
        help="the field for a column of a CSV or parquet file: event, occurredAt, contact.email, payload.NAME, "
        "attributes.NAME …; append ':text', ':number', ':boolean', ':json', ':seconds' or ':milliseconds' to set its "
        "type; an empty FIELD drops the column",
    )
    parser.add_argument(
        "--rejects",
        metavar="PATH",
        type=Path,
        help="file for rows that cannot be stored (default: FILE.rejected.ndjson)",
    )
    parser.add_argument("--again", action="store_true", help="read all files from the start, including completed ones")
    parser.set_defaults(run=run)


def column_field(text: str) -> tuple[str, str]:
    """Parse COLUMN=FIELD; an argparse type."""
    column, equals, field = text.rpartition("=")  # a column name may contain "="
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not COLUMN=FIELD")
    return column, field


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Import the files and print a report."""
    from api import process
    from api.crypto import Keyring
    from api.imports.errors import Rejects, default_rejects_path
    from api.imports.formats import ReadOptions, find_sources
    from api.imports.importer import import_history
    from api.store.database import DatabaseUnavailableError, with_application_name

    sources, names = find_sources(args.files, ReadOptions(args.dialect, dict(args.columns), args.again))
    dialects = set()
    for source in sources:  # a file that cannot be read is reported before the first event is stored
        with source.open():
            dialects.add(source.dialect)
    for dialect in sorted(dialects - {"workbench"}):
        note(f"detected an export of {_SYSTEMS[dialect]}; if it is not one, pass --from workbench")
    with Rejects(args.rejects or default_rejects_path(args.files[0])) as rejects, progress_display() as progress:
        try:
            keyring = Keyring(root_secret(settings))
            with database(settings) as urls:
                dsn = with_application_name(urls.dsn, keyring.tag())
                report = process.run(import_history(dsn, keyring, args.org, sources, rejects, progress))
            progress.stop()
            say(str(report))
        except KeyboardInterrupt:
            progress.stop()
            note(f"stopped; {_RESUME}")
            return 128 + signal.SIGINT
        except Exception as error:
            progress.stop()
            if progress.started or isinstance(error, DatabaseUnavailableError):
                note(_RESUME[0].upper() + _RESUME[1:] + ".")
            raise
    for name, normalized in names.changed.items():
        say(f"event {name!r} is stored as {normalized}")
    if rejects.count:
        say(f"Rejected rows are in {rejects.path}. Correct them there, then run:")
        say(f"  workbench import {rejects.path} --org {args.org}")
    return 0


class ProgressDisplay(Protocol):
    """Shows the progress of an import; `started` is true after the first status."""

    started: bool

    def __call__(self, status: "ImportStatus") -> None: ...

    def stop(self) -> None:
        """Restore the terminal."""


@contextmanager
def progress_display() -> Iterator[ProgressDisplay]:
    """Yield a bar if stderr is a terminal, plain lines otherwise."""
    display: ProgressDisplay = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield display
    finally:
        display.stop()


class _SpeedMeter:
    """Rows per second and remaining seconds, measured over the last ten seconds."""

    def __init__(self) -> None:
        # time in seconds, rows, share of the file
        self._samples: list[tuple[float, int, float]] = [(monotonic_ns() / 1e9, 0, 0.0)]

    def update(self, status: "ImportStatus") -> tuple[float, float | None]:
        now, rows = monotonic_ns() / 1e9, status.report.read
        self._samples.append((now, rows, status.share))
        while len(self._samples) > 2 and self._samples[1][0] < now - _SPEED_WINDOW_S:
            self._samples.pop(0)
        start, start_rows, start_share = self._samples[0]
        seconds, share = max(now - start, 1e-9), status.share - start_share
        return (rows - start_rows) / seconds, (1 - status.share) * seconds / share if share > 0 else None


class _Lines:
    """Plain lines, for logs."""

    def __init__(self) -> None:
        self.started = False
        self._speed, self._printed_s = _SpeedMeter(), monotonic_ns() / 1e9

    def __call__(self, status: "ImportStatus") -> None:
        self.started = True
        speed, left = self._speed.update(status)
        if monotonic_ns() / 1e9 - self._printed_s >= _LINE_INTERVAL_S:
            self._printed_s = monotonic_ns() / 1e9
            note(f"{status.share:4.0%}  {_counts(status, speed)}" + ("" if left is None else f", {left:,.0f} s left"))

    def stop(self) -> None:
        pass


class _Bar:
    """A progress bar of rich."""

    def __init__(self) -> None:
        self.started = False
        self._speed = _SpeedMeter()
        self._bar: Progress | None = None

    def __call__(self, status: "ImportStatus") -> None:
        self.started = True
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
            from rich.table import Column

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),  # a file name may look like markup: "[2024].csv"
                BarColumn(bar_width=20),
                TaskProgressColumn(),
                TextColumn("{task.fields[counts]}"),
                # The last column takes the rest of the width, and is cut if the terminal is narrow.
                TextColumn("{task.fields[left]}", table_column=Column(ratio=1, no_wrap=True, overflow="crop")),
                console=Console(stderr=True, color_system=None),
                expand=True,
            )
            self._bar.start()
            self._bar.add_task("", total=1.0, counts="", left="")
        speed, left = self._speed.update(status)
        self._bar.update(
            self._bar.task_ids[0],
            completed=status.share,
            description=status.file,
            counts=_counts(status, speed),
            left="" if left is None or status.share >= 1 else f"{left:,.0f} s left",
        )

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _counts(status: "ImportStatus", speed: float) -> str:
    report = status.report
    counts = [f"{report.stored:,} stored"]
    if report.duplicates:
        counts.append(f"{report.duplicates:,} duplicates")
    if report.rejected:
        counts.append(f"{report.rejected:,} rejected")
    return ", ".join([*counts, f"{speed:,.0f} rows/s"])
