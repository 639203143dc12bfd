"""Commands that manage access to an organization.

- `workbench org create NAME`
- `workbench key create|list|edit|roll|revoke`: API keys
- `workbench reader create|list|revoke`: the direct, read-only Postgres login of an organization
- `workbench origins list|add|remove`: web pages that may show the organization's in-app messages
- `workbench secret rotate`: replaces the root secret while the service is running

A new key, login URL or secret is shown once, alone on stdout, so that a script can capture it.
"""

import argparse
import asyncio
from datetime import datetime, timedelta

from api import private_files
from api.auth import keys, rotation, sql_logins
from api.auth.key_format import KINDS
from api.cli.database import database, root_secret, run_on_database, run_with_keyring
from api.cli.errors import ORG, add_action, add_actions, note, option, say
from api.clock import token
from api.crypto import Keyring, next_chain
from api.inapp import sign_in
from api.settings import Settings

_MAX_OVERLAP_HOURS = 720
_PHASE_RESULTS = {
    "settled": "the rotation has begun",
    "next": "every index is stored under both secrets",
    "former": "everything is sealed with the new secret; keep the old one for backups made with it",
}


def add_org(parser: argparse.ArgumentParser) -> None:
    name = option("name", metavar="NAME", help="1 to 40 of a-z, 0-9 and -")
    add_action(add_actions(parser), "create", create_org, "create an organization", name)


def add_key(parser: argparse.ArgumentParser) -> None:
    actions, key = add_actions(parser), option("key", metavar="KEY_OR_ID")
    scopes = option("--scopes", metavar="a,b", help="use these scopes instead of the default scopes of the kind")
    label = option("--name", default="", metavar="N", help="a label to tell keys apart")
    kind = option("--kind", required=True, choices=KINDS)
    description = "refuse events with unknown fields (--no-strict: accept them)"
    strict = option("--strict", action=argparse.BooleanOptionalAction, default=False, help=description)
    description = "create a key and print it; it is shown only once"
    add_action(actions, "create", create_key, description, ORG, kind, scopes, label, strict)
    add_action(actions, "list", list_keys, "list the keys of an organization", ORG)
    strict = option("--strict", action=argparse.BooleanOptionalAction, required=True, help=description)
    add_action(actions, "edit", edit_key, "change a key; takes effect within seconds", key, strict)
    description = "how long the old key stays valid (default 24); 0 revokes it now"
    overlap = option("--overlap", type=overlap_hours, default=24.0, metavar="HOURS", help=description)
    description = "replace a key and print the new one; the old one stays valid for a while"
    add_action(actions, "roll", roll_key, description, key, overlap)
    add_action(actions, "revoke", revoke_key, "revoke a key; takes effect within seconds", key)


def add_reader(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    description = "create the login of an organization and print its URL; it is shown only once"
    add_action(actions, "create", create_reader, description, ORG)
    add_action(actions, "list", list_readers, "show the login of an organization and its sessions", ORG)
    add_action(actions, "revoke", revoke_reader, "delete the login of an organization and end its sessions", ORG)


def add_origins(parser: argparse.ArgumentParser) -> None:
    actions, origin = (
        add_actions(parser),
        option("origin", metavar="ORIGIN", help="for example https://app.example.com"),
    )
    add_action(actions, "list", list_origins, "list the allowed origins", ORG)
    add_action(actions, "add", add_origin, "allow an origin", ORG, origin)
    add_action(actions, "remove", remove_origin, "remove an origin", ORG, origin)


def add_secret(parser: argparse.ArgumentParser) -> None:
    new = option("--new", action="store_true", help="begin to replace the secret with a new one")
    description = "continue to replace the secret, and print the secret for the next phase"
    add_action(add_actions(parser), "rotate", rotate_secret, description, new)


def overlap_hours(text: str) -> float:
    """Parse the hours for which a rolled key stays valid; an argparse type."""
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours <= _MAX_OVERLAP_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of hours; use 0 to {_MAX_OVERLAP_HOURS}")
    return hours


def create_org(args: argparse.Namespace, settings: Settings) -> None:
    with database(settings) as urls:
        root_secret(settings, urls.dsn)  # from now on, none is created for this database
        asyncio.run(keys.create_org(urls.dsn, args.name))
    say(f"created {args.name}; next: workbench key create --org {args.name} --kind live")


def create_key(args: argparse.Namespace, settings: Settings) -> None:
    scopes = [scope.strip() for scope in args.scopes.split(",") if scope.strip()] if args.scopes else None
    say(run_with_keyring(settings, keys.create, args.org, args.kind, scopes, args.name, args.strict))


def list_keys(args: argparse.Namespace, settings: Settings) -> None:
    def minute(moment: datetime | None) -> str:
        return f"{moment:%Y-%m-%d %H:%M}" if moment else "-"

    lines = [("ID", "KEY", "KIND", "NAME", "SCOPES", "STRICT", "CREATED", "LAST USED", "ENDS")]
    for row in run_on_database(settings, keys.list_keys, args.org):
        key, scopes = f"{row.prefix}…{row.last4}", ",".join(row.scopes)
        ends = "revoked " + minute(row.revoked_at) if row.revoked_at else minute(row.expires_at)
        strict = "strict" if row.strict else "-"
        times = minute(row.created_at), minute(row.last_used_at), ends
        lines.append((row.id, key, row.kind, row.name, scopes, strict, *times))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def edit_key(args: argparse.Namespace, settings: Settings) -> None:
    run_with_keyring(settings, keys.edit, args.key, args.strict)
    change = "refuses" if args.strict else "accepts"
    note(f"within 5 seconds every process {change} events of this key with unknown fields")


def roll_key(args: argparse.Namespace, settings: Settings) -> None:
    say(run_with_keyring(settings, keys.roll, args.key, timedelta(hours=args.overlap)))
    note(f"the old key stays valid for {args.overlap:g} hours" if args.overlap else "the old key is revoked")


def revoke_key(args: argparse.Namespace, settings: Settings) -> None:
    run_with_keyring(settings, keys.revoke, args.key)
    note("revoked; every process rejects it within 5 seconds")


def create_reader(args: argparse.Namespace, settings: Settings) -> None:
    say(run_with_keyring(settings, sql_logins.create, args.org))


def list_readers(args: argparse.Namespace, settings: Settings) -> None:
    login = run_with_keyring(settings, sql_logins.sessions, args.org)
    if login is None:
        note(f"{args.org} has no direct login; create one with: workbench reader create --org {args.org}")
        return
    role, sessions = login
    say(f"{role}  sessions: {len(sessions)}")
    for session in sessions:
        say(f"  {session.pid}  since {session.since:%Y-%m-%d %H:%M:%S}  {session.state or '-'}")


def revoke_reader(args: argparse.Namespace, settings: Settings) -> None:
    ended = run_with_keyring(settings, sql_logins.revoke, args.org)
    note(f"revoked; sessions ended: {ended}")


def list_origins(args: argparse.Namespace, settings: Settings) -> None:
    for origin in run_on_database(settings, sign_in.list_origins, args.org):
        say(origin)


def add_origin(args: argparse.Namespace, settings: Settings) -> None:
    origin = run_on_database(settings, sign_in.add_origin, args.org, args.origin)
    note(f"pages of {origin} may now show in-app messages of {args.org}")


def remove_origin(args: argparse.Namespace, settings: Settings) -> None:
    run_on_database(settings, sign_in.remove_origin, args.org, args.origin)
    note("removed; its connections are closed within 5 seconds")


def rotate_secret(args: argparse.Namespace, settings: Settings) -> None:
    """Finish the current phase of a rotation (see `api.crypto`), then print or store the secret for the next phase."""
    with database(settings) as urls:
        secret = root_secret(settings, urls.dsn)
        current = Keyring(secret)
        is_settled = current.chain.part == "settled"
        next_secret = None if is_settled and not args.new else next_chain(secret, token(32).hex())
        next_keyring = None if next_secret is None else Keyring(next_secret)
        changed = asyncio.run(rotation.run_phase(urls.dsn, current, next_keyring))
    if next_secret is None:
        note("the rotation is finished" if changed else "no rotation is in progress; begin one with --new")
        return
    note(_PHASE_RESULTS[current.chain.part])
    # Processes read the secret at their start; `run_phase` begins the next phase only when all of them use its secret.
    if settings.secret is None:
        file = settings.data_dir / "secret"
        private_files.write(file, next_secret + "\n")
        note(f"{file} contains the secret for the next phase; restart every process, then run: workbench secret rotate")
    else:
        say(next_secret)
        note("restart every process with this WORKBENCH_SECRET, then run with it: workbench secret rotate")
