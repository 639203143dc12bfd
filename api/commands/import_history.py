"""`workbench import FILE --org NAME`: history from parquet or ndjson; it never triggers automations."""

import argparse
import asyncio
from pathlib import Path

from api.commands import CommandError
from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.secret import root_secret
from api.commands.terminal import note, say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("import", help="import history from a parquet or ndjson file")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--org", required=True, metavar="NAME")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Import the file and report what became of its rows."""
    if not args.file.is_file():
        raise CommandError(f"there is no file {args.file}")
    from api.ingest.history import import_file
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        report = asyncio.run(import_file(addresses.dsn, keyring, args.org, args.file, _progress))
    say(str(report))
    return 0


def _progress(done: int) -> None:
    note(f"{done:,} events")
