"""`workbench org create NAME`."""

import argparse
import asyncio

from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.terminal import say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    actions = subparsers.add_parser("org", help="organizations").add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create an organization")
    create.add_argument("name", metavar="NAME", help="1 to 40 of a-z, 0-9 and -")
    create.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Create the organization."""
    from api.access import orgs

    with database(settings) as addresses:
        asyncio.run(orgs.create(addresses.dsn, args.name))
    say(f"created {args.name}; next: workbench key create --org {args.name} --kind live")
    return 0
