"""`workbench backup FOLDER`: everything in the database as of one moment, while everything goes on."""

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
    parser = subparsers.add_parser("backup", help="write everything in the database into a folder")
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Write a backup; it is there when it is whole."""
    from api.keyring import Keyring

    folder: Path = args.folder
    if folder.exists():
        raise CommandError(f"{folder} exists already; name a new folder")
    secret = Keyring(root_secret(settings)).fingerprint()
    with database(settings) as addresses:
        rows = asyncio.run(_write(settings, addresses.dsn, secret, folder))
    say(f"{sum(rows.values()):,} rows in {folder}")
    note("Emails and keys open with the same WORKBENCH_SECRET alone, which is not in the backup: keep it elsewhere.")
    return 0


async def _write(settings: Settings, dsn: str, secret: str, folder: Path) -> dict[str, int]:
    from api.commands import archive, private
    from api.store.archive import freeze

    part = private.make_folder(folder.with_name(f"{folder.name}.part"))
    async with freeze(dsn) as moment:
        await asyncio.to_thread(archive.dump, settings, dsn, moment.snapshot, part / archive.DUMP)
    archive.write_manifest(part, archive.Manifest(1, moment.at.isoformat(), secret, moment.rows))
    part.rename(folder)
    return moment.rows
