"""`workbench engine`: one engine process, which runs what automations started."""

import argparse

from api import process
from api.cli import network
from api.cli.database import database, must_be_fit, root_secret
from api.cli.errors import Subparsers, add_leash
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("engine", help="run an engine process")
    add_leash(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Work until stopped."""
    from api.worker import work

    secret = root_secret(settings)
    with database(settings) as addresses:
        process.install_logging()
        must_be_fit(addresses)
        if args.leash:
            network.follow_parent()
        work(settings, addresses.dsn, secret)
    return 0
