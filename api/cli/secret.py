"""The root secret, and `workbench secret rotate`, which replaces it while the service is running.

The root secret is `WORKBENCH_SECRET`, or one that is created on first use and kept in the data folder. Emails are
encrypted and API keys are hashed with keys derived from it, so without it they are lost.

A rotation has three phases (see `api.crypto`). Each call of the command finishes one phase and gives the secret for the
next: printed alone on stdout, or written into the data folder if the secret is kept there.
"""

import argparse
import asyncio

from api import private_files
from api.cli import CommandError
from api.cli.database import database
from api.cli.errors import Subparsers, note, say
from api.clock import token
from api.settings import Settings

_MIN_SECRET_LENGTH = 16
_PHASE_RESULTS = {
    "settled": "the rotation has begun",
    "next": "every index is stored under both secrets",
    "former": "everything is sealed with the new secret; keep the old one for backups made with it",
}


def root_secret(settings: Settings) -> str:
    """Return the secret of this installation; create it on first use. Raise CommandError if it is too short."""
    if settings.secret is None:
        return private_files.read_or_create(settings.data_dir / "secret", token(32).hex())
    if len(settings.secret) < _MIN_SECRET_LENGTH:
        raise CommandError(
            f"WORKBENCH_SECRET is shorter than {_MIN_SECRET_LENGTH} characters; make one with: openssl rand -hex 32"
        )
    return settings.secret


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("secret", help="the secret of the installation")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    rotate = actions.add_parser(
        "rotate", help="continue to replace the secret, and print the secret for the next phase"
    )
    rotate.add_argument("--new", action="store_true", help="begin to replace the secret with a new one")
    rotate.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Finish the current phase, then print or store the secret for the next phase."""
    from api.auth import rotation
    from api.crypto import Keyring, next_chain

    secret = root_secret(settings)
    keyring = Keyring(secret)
    with database(settings) as urls:
        changed = asyncio.run(rotation.run_phase(urls.dsn, keyring))
    if keyring.chain.part == "settled" and not args.new:
        note("the rotation is finished" if changed else "no rotation is in progress; begin one with --new")
        return 0
    next_secret = next_chain(secret, token(32).hex())
    note(_PHASE_RESULTS[keyring.chain.part])
    # Processes read the secret at their start. The next phase is safe only when all of them use the chain of this one.
    if settings.secret is None:
        file = settings.data_dir / "secret"
        private_files.write(file, next_secret + "\n")
        note(f"{file} contains the secret for the next phase; restart every process, then run: workbench secret rotate")
    else:
        say(next_secret)
        note("restart every process with this WORKBENCH_SECRET, then run with it: workbench secret rotate")
    return 0
