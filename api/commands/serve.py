"""`workbench serve`: one API process."""

import argparse

from api.commands import leash
from api.commands.arguments import Subparsers, add_leash, port
from api.commands.database import database
from api.commands.ports import must_be_free
from api.commands.secret import root_secret
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("serve", help="run an API process")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (default %(default)s)")
    add_leash(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Serve until stopped."""
    must_be_free(args.host, args.port, "--port")
    from api.app import serve

    secret = root_secret(settings)
    with database(settings) as addresses:
        if args.leash:
            leash.follow_parent()
        serve(settings, addresses.dsn, secret, args.host, args.port)
    return 0
