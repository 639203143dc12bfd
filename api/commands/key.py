"""`workbench key create|list|roll|revoke`. A key is shown once, alone on stdout, so that scripts can catch it."""

import argparse
import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from api.commands.arguments import Subparsers
from api.commands.database import database
from api.commands.secret import root_secret
from api.commands.terminal import note, say
from api.settings import Settings

_MOST_HOURS = 720
_KINDS = ("live", "test", "publishable", "workbench")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    actions = subparsers.add_parser("key", help="API keys").add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create a key and print it, the only time it is shown")
    create.add_argument("--org", required=True, metavar="NAME")
    create.add_argument("--kind", required=True, choices=_KINDS)
    create.add_argument("--scopes", metavar="a,b", help="instead of the kind's default scopes")
    create.add_argument("--name", default="", metavar="N", help="for people, to tell keys apart")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list an organization's keys")
    listing.add_argument("--org", required=True, metavar="NAME")
    listing.set_defaults(run=_list)
    roll = actions.add_parser("roll", help="print a new key like an old one, which works on for a while")
    roll.add_argument("key", metavar="KEY_OR_ID")
    roll.add_argument("--overlap", type=_hours, default=24.0, metavar="HOURS", help="instead of 24; 0 ends it now")
    roll.set_defaults(run=_roll)
    revoke = actions.add_parser("revoke", help="end a key within seconds")
    revoke.add_argument("key", metavar="KEY_OR_ID")
    revoke.set_defaults(run=_revoke)


def _create(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import keys
    from api.keyring import Keyring

    scopes = [scope.strip() for scope in args.scopes.split(",") if scope.strip()] if args.scopes else None
    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        say(asyncio.run(keys.create(addresses.dsn, keyring, args.org, args.kind, scopes, args.name)))
    return 0


def _list(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import keys

    with database(settings) as addresses:
        rows = asyncio.run(keys.list_keys(addresses.dsn, args.org))
    lines = [("ID", "KEY", "KIND", "NAME", "SCOPES", "CREATED", "LAST USED", "ENDS")]
    for row in rows:
        ends = "revoked " + _day(row.revoked_at) if row.revoked_at else _day(row.expires_at)
        key = f"{row.prefix}…{row.last4}"
        scopes = ",".join(row.scopes)
        lines.append((row.id, key, row.kind, row.name, scopes, _day(row.created_at), _day(row.last_used_at), ends))
    for line in _aligned(lines):
        say(line)
    return 0


def _roll(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import keys
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        say(asyncio.run(keys.roll(addresses.dsn, keyring, args.key, timedelta(hours=args.overlap))))
    note(f"the old key works for another {args.overlap:g} hours" if args.overlap else "the old key has ended")
    return 0


def _revoke(args: argparse.Namespace, settings: Settings) -> int:
    from api.access import keys
    from api.keyring import Keyring

    keyring = Keyring(root_secret(settings))
    with database(settings) as addresses:
        asyncio.run(keys.revoke(addresses.dsn, keyring, args.key))
    note("revoked; every process refuses it within 5 seconds")
    return 0


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours <= _MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours; use 0 to {_MOST_HOURS}")
    return hours


def _day(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment else "-"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
