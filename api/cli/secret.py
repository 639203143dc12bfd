"""`workbench secret rotate`: replace the secret part by part, beside everything that goes on. What it prints on stdout is a secret."""

import argparse
import asyncio

from api.cli import database
from api.cli.database import database as rotate_database
from api.cli.database import root_secret
from api.cli.errors import Subparsers, note, say
from api.clock import token
from api.settings import Settings

_NEXT = {
    "settled": "a rotation has begun",
    "next": "every index is there twice",
    "former": "all is sealed with the new secret; keep the former one for backups that were made with it",
}


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    actions = subparsers.add_parser("secret", help="the secret of the installation").add_subparsers(
        required=True, metavar="ACTION"
    )
    rotate = actions.add_parser("rotate", help="go on replacing the secret, and print what it is to be next")
    rotate.add_argument("--new", action="store_true", help="begin to replace it by a new one")
    rotate.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Do what the secret of now asks for; print, or write into the data folder, what it is to be next."""
    from api.auth import rotation
    from api.crypto import Keyring, advanced

    secret = root_secret(settings)
    keyring = Keyring(secret)
    with rotate_database(settings) as addresses:
        done = asyncio.run(rotation.go_on(addresses.dsn, keyring))
    if keyring.chain.part == "settled" and not args.new:
        note("the rotation is over" if done else "no rotation is under way; begin one with --new")
        return 0
    text = advanced(secret, token(32).hex())
    note(_NEXT[keyring.chain.part])
    if settings.secret is None:
        database.write(settings.data_dir / "secret", text + "\n")
        note(
            f"{settings.data_dir / 'secret'} has what is next; start every process anew, then repeat: workbench secret rotate"
        )
    else:
        say(text)
        note("start every process anew with this as WORKBENCH_SECRET, then repeat with it: workbench secret rotate")
    return 0
