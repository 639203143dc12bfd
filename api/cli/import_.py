"""`workbench import FILE… --org NAME`: import history from files of several formats. It never triggers automations.

Progress is a bar in a terminal and a line every few seconds elsewhere; both go to stderr. The bar is exactly as wide as
the terminal and has no colours, because of notebook cells: a cell overwrites a line with the next one without clearing
it, so the rest of a longer line would stay visible, and it counts escape codes as characters.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

from api import process
from api.cli.database import database, root_secret
from api.cli.errors import add_database, note, say
from api.clock import monotonic_ns
from api.crypto import Keyring
from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import ImportStatus, import_history
from api.settings import Settings
from api.store.database import DatabaseUnavailableError, describe_database, with_application_name

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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
    add_database(parser)
    parser.add_argument("--again", action="store_true", help="read all files from the start, including completed ones")
    parser.set_defaults(run=run)


def column_field(text: str) -> tuple[str, str]:
    """Parse COLUMN=FIELD; an argparse type."""
    column, equals, field = text.rpartition("=")  # a column name may contain "="
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not COLUMN=FIELD")
    return column, field


def run(args: argparse.Namespace, settings: Settings) -> int:
    sources, names = find_sources(args.files, ReadOptions(args.dialect, dict(args.columns), args.again))
    dialects = set()
    for source in sources:  # a file that cannot be read is reported before the first event is stored
        with source.open():
            dialects.add(source.dialect)
    for dialect in sorted(dialects - {"workbench"}):
        note(f"detected an export of {_SYSTEMS[dialect]}; if it is not one, pass --from workbench")
    with Rejects(args.rejects or default_rejects_path(args.files[0])) as rejects:
        progress = ProgressDisplay()
        try:
            with progress, database(settings, create=False) as urls:
                keys = Keyring(root_secret(settings, urls.dsn))
                dsn = with_application_name(urls.dsn, keys.tag())
                embedded = f"the embedded Postgres in {settings.data_dir}"
                target = embedded if settings.database_url is None else describe_database(urls.dsn)
                note(f"importing into the organization {args.org} of {target}")
                report = process.run(import_history(dsn, keys, args.org, sources, rejects, progress))
        except KeyboardInterrupt:
            note(f"stopped; {_RESUME}")
            return 128 + signal.SIGINT
        except Exception as error:
            if progress.started or isinstance(error, DatabaseUnavailableError):
                note(_RESUME[0].upper() + _RESUME[1:] + ".")
            raise
        say(str(report))
    for name, normalized in names.changed.items():
        say(f"event {name!r} is stored as {normalized}")
    if rejects.count:
        say(f"Rejected rows are in {rejects.path}. Correct them there, then run:")
        say(f"  workbench import {rejects.path} --org {args.org}")
    return 0


class ProgressDisplay:
    """Shows the progress of an import: a bar if stderr is a terminal, a line every few seconds otherwise."""

    def __init__(self) -> None:
        self.started = False  # true after the first status
        self._printed_ns = monotonic_ns()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),  # a file name may look like markup: "[2024].csv"
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[counts]}"),
            # The last column takes the rest of the width, and is cut if the terminal is narrow.
            TextColumn("{task.fields[left]}", table_column=Column(ratio=1, no_wrap=True, overflow="crop")),
            console=Console(stderr=True, color_system=None),
            expand=True,
            speed_estimate_period=_SPEED_WINDOW_S,
            disable=not sys.stderr.isatty(),  # speed and remaining time are measured nevertheless
        )
        self._share = self._bar.add_task("", total=1.0, counts="", left="")
        self._rows = self._bar.add_task("", total=None, visible=False)  # only for its speed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()  # restores the terminal

    def __call__(self, status: ImportStatus) -> None:
        if not self.started:
            self.started = True
            self._bar.start()
        self._bar.update(self._rows, completed=status.report.read)
        self._bar.update(self._share, completed=status.share)
        share, rows = (self._bar.tasks[index] for index in (self._share, self._rows))
        report = status.report
        duplicates = f", {report.duplicates:,} duplicates" if report.duplicates else ""
        rejected = f", {report.rejected:,} rejected" if report.rejected else ""
        counts = f"{report.stored:,} stored{duplicates}{rejected}, {rows.speed or 0.0:,.0f} rows/s"
        left = f"{share.time_remaining:,.0f} s left" if share.time_remaining else ""
        self._bar.update(self._share, description=status.file, counts=counts, left=left)
        if self._bar.disable and monotonic_ns() - self._printed_ns >= _LINE_INTERVAL_S * 1e9:
            self._printed_ns = monotonic_ns()
            note(f"{status.share:4.0%}  {counts}" + (f", {left}" if left else ""))
