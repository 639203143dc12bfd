"""`workbench migrate`: bring the database up to date."""

import argparse

from api.commands import database
from api.commands.arguments import Subparsers
from api.commands.terminal import say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("migrate", help="bring the database up to date")
    parser.add_argument(
        "--admin-dsn",
        metavar="URL",
        help="a superuser's address of the same database, to harden SQL access (embedded: not needed)",
    )
    parser.add_argument(
        "--contract", action="store_true", help="take away, too, what only older versions use; end those first"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Apply what is missing and name it."""
    with database.database(settings) as addresses:
        admin_dsn = args.admin_dsn or addresses.admin_dsn
        applied = database.migrate(database.Addresses(addresses.dsn, admin_dsn), contract=args.contract)
    say(f"applied: {', '.join(applied)}" if applied else "the database is up to date")
    return 0
