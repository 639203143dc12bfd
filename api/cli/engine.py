"""`workbench engine`: one engine process, which runs the entries of automations."""

import argparse

from api import process
from api.cli import network
from api.cli.database import database, require_fit_database
from api.cli.errors import Subparsers, add_leash
from api.cli.secret import root_secret
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("engine", help="run an engine process")
    add_leash(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from api.worker import work

    secret = root_secret(settings)
    with database(settings) as urls:
        process.install_logging()
        require_fit_database(urls)
        if args.leash:
            network.follow_parent()
        work(settings, urls.dsn, secret)
    return 0
