"""`workbench import FILE… --org NAME`: history from files of many kinds; it never triggers automations."""

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.import_progress import Shown, shown
from api.commands.secret import root_secret
from api.commands.terminal import note, say
from api.settings import Settings

if TYPE_CHECKING:
    from api.ingest.files.names import Names
    from api.ingest.files.sources import Source
    from api.ingest.rejects import Rejects

_DESCRIPTION = """\
Store past events of an organization, each dated when it happened. Automations are not triggered.

Files: .ndjson .jsonl .csv .tsv .parquet, the text ones also as .gz or .zst; a folder means all of them in it.
Exports of Segment and PostHog are recognised. docs/import-and-export.md tells how each is read.

Stopped at any point (Ctrl-C, kill -9, the database restarting), the same command goes on where it was. Nothing is ever
stored twice: an event counts by its idempotencyKey, or by its name, contact and moment if it has none.
"""
_EXAMPLES = """\
examples:
  workbench import events.ndjson --org acme
  workbench import orders.csv --org acme --map customer=contact.externalId --map ts=occurredAt --map total=payload.total
  workbench import segment-logs/ --org acme --from segment
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "import",
        help="import history from files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a file, or a folder of files")
    parser.add_argument("--org", required=True, metavar="NAME", help="the organization whose events these are")
    parser.add_argument(
        "--from", dest="dialect", choices=("workbench", "segment", "posthog"), help="whose export it is (default: seen)"
    )
    parser.add_argument(
        "--map",
        dest="columns",
        metavar="COLUMN=FIELD",
        action="append",
        default=[],
        type=_column,
        help="where a column of a CSV or parquet file goes: event, occurredAt, contact.email, payload.NAME, attributes.NAME …; "
        "':text', ':number', ':boolean', ':json', ':seconds' or ':milliseconds' behind it says what it is; nothing: left out",
    )
    parser.add_argument(
        "--rejects",
        metavar="PATH",
        type=Path,
        help="where rows go that cannot be stored (default: FILE.rejected.ndjson)",
    )
    parser.add_argument("--again", action="store_true", help="read files from the beginning, also those that are done")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Import the files and report what became of their rows."""
    from api.ingest.files.sources import How, find_sources
    from api.ingest.rejects import Rejects, beside

    sources, names = find_sources(args.files, How(args.dialect, dict(args.columns), args.again))
    _check(sources)
    with Rejects(args.rejects or beside(args.files[0])) as rejects, shown() as progress:
        try:
            _import(args.org, settings, sources, rejects, progress)
        except KeyboardInterrupt:
            progress.stop()
            note(f"stopped; {_AGAIN}")
            return 128 + signal.SIGINT
        except Exception as error:
            progress.stop()
            if progress.begun or type(error).__name__ == "UnavailableError":
                note(_AGAIN[0].upper() + _AGAIN[1:] + ".")
            raise
    _tell(args.org, names, rejects)
    return 0


_AGAIN = "what is stored stays, and the same command goes on from there"


def _import(org: str, settings: Settings, sources: list["Source"], rejects: "Rejects", progress: Shown) -> None:
    from api.ingest.history import import_history
    from api.keyring import Keyring
    from api.loop import run
    from api.store.database import marked

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        report = run(import_history(marked(addresses.dsn, keyring.mark()), keyring, org, sources, rejects, progress))
    progress.stop()
    say(str(report))


def _check(sources: list["Source"]) -> None:
    """Make sure that every file can be read before the first event is stored, and say what was recognised."""
    seen = set()
    for source in sources:
        with source.opened():
            seen.add(source.dialect)
    for dialect in sorted(seen - {"workbench"}):
        note(f"read as an export of {_SYSTEMS[dialect]}; --from workbench if it is none")


_SYSTEMS = {"segment": "Segment", "posthog": "PostHog"}


def _tell(org: str, names: "Names", rejects: "Rejects") -> None:
    for name, normal in names.changed.items():
        say(f"event {name!r} is stored as {normal}")
    if rejects.count:
        say(f"Rows that were rejected are in {rejects.path}: mend them there, then")
        say(f"  workbench import {rejects.path} --org {org}")


def _column(text: str) -> tuple[str, str]:
    column, equals, field = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not COLUMN=FIELD")
    return column, field
