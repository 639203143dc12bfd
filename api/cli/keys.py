"""Commands that manage access to an organization.

- `workbench org create NAME`
- `workbench key create|list|roll|revoke`: API keys
- `workbench reader create|list|revoke`: the direct, read-only Postgres login of an organization
- `workbench origins list|add|remove`: web pages that may show the organization's in-app messages

A new key or login URL is shown once, alone on stdout, so that a script can capture it.
"""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from api.cli.database import database
from api.cli.errors import Subparsers, note, say
from api.cli.secret import root_secret
from api.settings import Settings

if TYPE_CHECKING:
    from api.crypto import Keyring

_KINDS = ("live", "test", "publishable", "workbench")
_MAX_OVERLAP_HOURS = 720


def add_parser(subparsers: Subparsers) -> None:
    actions = subparsers.add_parser("org", help="organizations").add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create an organization")
    create.add_argument("name", metavar="NAME", help="1 to 40 of a-z, 0-9 and -")
    create.set_defaults(run=create_org)

    actions = subparsers.add_parser("key", help="API keys").add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create a key and print it; it is shown only once")
    create.add_argument("--org", required=True, metavar="NAME")
    create.add_argument("--kind", required=True, choices=_KINDS)
    create.add_argument("--scopes", metavar="a,b", help="use these scopes instead of the default scopes of the kind")
    create.add_argument("--name", default="", metavar="N", help="a label to tell keys apart")
    create.set_defaults(run=create_key)
    listing = actions.add_parser("list", help="list the keys of an organization")
    listing.add_argument("--org", required=True, metavar="NAME")
    listing.set_defaults(run=list_keys)
    roll = actions.add_parser("roll", help="replace a key and print the new one; the old one stays valid for a while")
    roll.add_argument("key", metavar="KEY_OR_ID")
    roll.add_argument(
        "--overlap",
        type=overlap_hours,
        default=24.0,
        metavar="HOURS",
        help="how long the old key stays valid (default 24); 0 revokes it now",
    )
    roll.set_defaults(run=roll_key)
    revoke = actions.add_parser("revoke", help="revoke a key; takes effect within seconds")
    revoke.add_argument("key", metavar="KEY_OR_ID")
    revoke.set_defaults(run=revoke_key)

    parser = subparsers.add_parser("reader", help="direct read-only logins for tools that connect to Postgres")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, description in (
        ("create", create_reader, "create the login of an organization and print its URL; it is shown only once"),
        ("list", list_readers, "show the login of an organization and its sessions"),
        ("revoke", revoke_reader, "delete the login of an organization and end its sessions"),
    ):
        action = actions.add_parser(name, help=description)
        action.add_argument("--org", required=True, metavar="NAME")
        action.set_defaults(run=run)

    parser = subparsers.add_parser("origins", help="web pages that may show in-app messages")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, description in (
        ("list", list_origins, "list the allowed origins"),
        ("add", add_origin, "allow an origin"),
        ("remove", remove_origin, "remove an origin"),
    ):
        action = actions.add_parser(name, help=description)
        action.add_argument("--org", required=True, metavar="NAME")
        if name != "list":
            action.add_argument("origin", metavar="ORIGIN", help="for example https://app.example.com")
        action.set_defaults(run=run)


def overlap_hours(text: str) -> float:
    """Parse the hours for which a rolled key stays valid; an argparse type."""
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours <= _MAX_OVERLAP_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of hours; use 0 to {_MAX_OVERLAP_HOURS}")
    return hours


@contextmanager
def _keyring_and_database(settings: Settings) -> "Iterator[tuple[Keyring, str]]":
    from api.crypto import Keyring

    keyring = Keyring(root_secret(settings))  # first: an invalid secret is reported without starting a server
    with database(settings) as urls:
        yield keyring, urls.dsn


def create_org(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import keys

    with database(settings) as urls:
        asyncio.run(keys.create_org(urls.dsn, args.name))
    say(f"created {args.name}; next: workbench key create --org {args.name} --kind live")
    return 0


def create_key(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import keys

    scopes = [scope.strip() for scope in args.scopes.split(",") if scope.strip()] if args.scopes else None
    with _keyring_and_database(settings) as (keyring, dsn):
        say(asyncio.run(keys.create(dsn, keyring, args.org, args.kind, scopes, args.name)))
    return 0


def list_keys(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import keys

    def minute(moment: datetime | None) -> str:
        return f"{moment:%Y-%m-%d %H:%M}" if moment else "-"

    with database(settings) as urls:
        rows = asyncio.run(keys.list_keys(urls.dsn, args.org))
    lines = [("ID", "KEY", "KIND", "NAME", "SCOPES", "CREATED", "LAST USED", "ENDS")]
    for row in rows:
        key, scopes = f"{row.prefix}…{row.last4}", ",".join(row.scopes)
        ends = "revoked " + minute(row.revoked_at) if row.revoked_at else minute(row.expires_at)
        lines.append((row.id, key, row.kind, row.name, scopes, minute(row.created_at), minute(row.last_used_at), ends))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def roll_key(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import keys

    with _keyring_and_database(settings) as (keyring, dsn):
        say(asyncio.run(keys.roll(dsn, keyring, args.key, timedelta(hours=args.overlap))))
    note(f"the old key stays valid for {args.overlap:g} hours" if args.overlap else "the old key is revoked")
    return 0


def revoke_key(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import keys

    with _keyring_and_database(settings) as (keyring, dsn):
        asyncio.run(keys.revoke(dsn, keyring, args.key))
    note("revoked; every process rejects it within 5 seconds")
    return 0


def create_reader(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import sql_logins

    with _keyring_and_database(settings) as (keyring, dsn):
        say(asyncio.run(sql_logins.create(dsn, keyring, args.org)))
    return 0


def list_readers(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import sql_logins

    with _keyring_and_database(settings) as (keyring, dsn):
        login = asyncio.run(sql_logins.sessions(dsn, keyring, args.org))
    if login is None:
        note(f"{args.org} has no direct login; create one with: workbench reader create --org {args.org}")
        return 0
    role, sessions = login
    say(f"{role}  sessions: {len(sessions)}")
    for session in sessions:
        say(f"  {session.pid}  since {session.since:%Y-%m-%d %H:%M:%S}  {session.state or '-'}")
    return 0


def revoke_reader(args: argparse.Namespace, settings: Settings) -> int:
    from api.auth import sql_logins

    with _keyring_and_database(settings) as (keyring, dsn):
        ended = asyncio.run(sql_logins.revoke(dsn, keyring, args.org))
    note(f"revoked; sessions ended: {ended}")
    return 0


def list_origins(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import sign_in

    with database(settings) as urls:
        for origin in asyncio.run(sign_in.list_origins(urls.dsn, args.org)):
            say(origin)
    return 0


def add_origin(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import sign_in

    with database(settings) as urls:
        origin = asyncio.run(sign_in.add_origin(urls.dsn, args.org, args.origin))
    note(f"pages of {origin} may now show in-app messages of {args.org}")
    return 0


def remove_origin(args: argparse.Namespace, settings: Settings) -> int:
    from api.inapp import sign_in

    with database(settings) as urls:
        asyncio.run(sign_in.remove_origin(urls.dsn, args.org, args.origin))
    note("removed; its connections are closed within 5 seconds")
    return 0
