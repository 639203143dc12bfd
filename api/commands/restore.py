"""`workbench restore FOLDER`: a backup into a database in which nobody's data is."""

import argparse
import asyncio
from pathlib import Path

from api.commands import CommandError
from api.commands.arguments import Subparsers
from api.commands.database import Addresses, database, migrate
from api.commands.secret import root_secret
from api.commands.terminal import note, say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("restore", help="bring a backup back, into an empty database")
    parser.add_argument("folder", type=Path, help="what `workbench backup` has written")
    parser.add_argument("--admin-dsn", metavar="URL", help="a superuser's address, as for `workbench migrate`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Restore, bring up to date, and count again; 1 when anything differs or contradicts itself."""
    from api.commands import archive
    from api.keyring import Keyring
    from api.store.archive import is_cluster, is_in_use, look_through, make_room

    manifest = archive.read_manifest(args.folder)
    if not Keyring(root_secret(settings)).knows(manifest.secret):
        raise CommandError("the backup was made under another secret; set WORKBENCH_SECRET to that one")
    with database(settings) as addresses:
        if asyncio.run(is_in_use(addresses.dsn)):
            raise CommandError("there is data of organizations in this database; restore into an empty one")
        asyncio.run(make_room(addresses.dsn))
        spread = asyncio.run(is_cluster(addresses.dsn))
        archive.restore(settings, addresses.dsn, args.folder / archive.DUMP, spread=spread)
        migrate(Addresses(addresses.dsn, args.admin_dsn or addresses.admin_dsn))
        rows, contradictions = asyncio.run(look_through(addresses.dsn))
    wrong = [*_differences(manifest.rows, rows), *contradictions]
    for each in wrong:
        note(each)
    say(f"{sum(rows.values()):,} rows as of {manifest.made_at}; {len(wrong) or 'no'} contradictions")
    return 1 if wrong else 0


def _differences(wanted: dict[str, int], found: dict[str, int]) -> list[str]:
    names = sorted(wanted.keys() | found.keys())
    return [
        f"{name}: {found.get(name, 0)} rows instead of {wanted.get(name, 0)}"
        for name in names
        if found.get(name, 0) != wanted.get(name, 0)
    ]
