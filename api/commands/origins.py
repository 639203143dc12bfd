"""`workbench origins list|add|remove`: which web pages may show an organization's in-app messages."""

import argparse
import asyncio

from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.terminal import note, say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    described = "web pages that may show in-app messages"
    actions = subparsers.add_parser("origins", help=described).add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list them")
    add = actions.add_parser("add", help="let a page show messages")
    remove = actions.add_parser("remove", help="let it show them no longer")
    for action, run in ((listing, _list), (add, _add), (remove, _remove)):
        action.add_argument("--org", required=True, metavar="NAME")
        action.set_defaults(run=run)
    for action in (add, remove):
        action.add_argument("origin", metavar="ORIGIN", help="like https://app.example.com")


def _list(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import origins

    with database(settings) as addresses:
        for origin in asyncio.run(origins.list_origins(addresses.dsn, args.org)):
            say(origin)
    return 0


def _add(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import origins

    with database(settings) as addresses:
        origin = asyncio.run(origins.add_origin(addresses.dsn, args.org, args.origin))
    note(f"pages of {origin} may show the messages of {args.org}")
    return 0


def _remove(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import origins

    with database(settings) as addresses:
        asyncio.run(origins.remove_origin(addresses.dsn, args.org, args.origin))
    note("removed; its sockets end within 5 seconds")
    return 0
