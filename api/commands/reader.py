"""`workbench reader create|list|revoke`: the direct login of an organization. Its URL is shown once, alone on stdout."""

import argparse
import asyncio

from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.secret import root_secret
from api.commands.terminal import note, say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "reader", help="direct read-only logins, for tools that speak to Postgres themselves"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, what in (
        ("create", _create, "open an organization's login and print its URL, the only time it is shown"),
        ("list", _list, "list an organization's login and its sessions"),
        ("revoke", _revoke, "close an organization's login and end its sessions at once"),
    ):
        action = actions.add_parser(name, help=what)
        action.add_argument("--org", required=True, metavar="NAME")
        action.set_defaults(run=run)


def _create(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import direct
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        say(asyncio.run(direct.create(addresses.dsn, keyring, args.org)))
    return 0


def _list(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import direct
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        found = asyncio.run(direct.sessions(addresses.dsn, keyring, args.org))
    if found is None:
        note(f"{args.org} has no direct login; make one with: workbench reader create --org {args.org}")
        return 0
    role, sessions = found
    say(f"{role}  sessions: {len(sessions)}")
    for each in sessions:
        say(f"  {each.pid}  since {each.since:%Y-%m-%d %H:%M:%S}  {each.state or '-'}")
    return 0


def _revoke(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import direct
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        ended = asyncio.run(direct.revoke(addresses.dsn, keyring, args.org))
    note(f"revoked; sessions ended: {ended}")
    return 0
