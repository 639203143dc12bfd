"""The database of a command: `DATABASE_URL`, or the embedded server, joined when it runs and started when it does not.

An embedded server that a command started itself is migrated (nobody else can have) and lives as long as the command.

`workbench migrate`: bring the database up to date.

Small private files of the data folder: secrets, tokens, keys. Folder 0700 when we make it, files 0600 always.

The root secret: `WORKBENCH_SECRET`, or one made once and kept in the data folder (0600).

Everything sealed or hashed depends on it: whoever loses it loses the emails and all keys.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from api.cli import CommandError
from api.cli.errors import Subparsers, note, say
from api.clock import token
from api.settings import Settings


class DatabaseUrls(msgspec.Struct, frozen=True):
    """URLs of the database: the application's, and a superuser's when the server is embedded."""

    dsn: str
    admin_dsn: str | None


@contextmanager
def database(settings: Settings) -> Iterator[DatabaseUrls]:
    """Give the addresses of a database that accepts connections; raise EmbeddedError."""
    if settings.database_url is not None:
        yield DatabaseUrls(settings.database_url, None)
        return
    from api.embedded import EmbeddedPostgres

    postgres = EmbeddedPostgres(settings.data_dir, bin_dir=settings.postgres_bin, report=note)
    before = signal.signal(signal.SIGTERM, _leave)  # a stopped command must stop its server too
    try:
        with postgres as server:
            if server.owned:
                migrate(DatabaseUrls(server.dsn, server.admin_dsn))
            yield DatabaseUrls(server.dsn, server.admin_dsn)
    finally:
        signal.signal(signal.SIGTERM, before)


def must_be_fit(addresses: DatabaseUrls) -> None:
    """Raise UnfitServerError or MigrationError unless our code may work there; a server that is away is not judged."""
    from api.store.migrate import require_fit_server as judge

    asyncio.run(judge(addresses.dsn))


def migrate(addresses: DatabaseUrls, *, contract: bool = False) -> list[str]:
    """Bring the database and its direct logins up to date; return the names of the migrations applied now.

    `contract`: take away, too, what only older code uses.
    """
    return asyncio.run(_migrate(addresses, contract))


async def _migrate(addresses: DatabaseUrls, contract: bool) -> list[str]:
    from api.auth import sql_logins
    from api.store.migrate import LockWait
    from api.store.migrate import migrate as apply

    wait = LockWait(report=note)
    applied = await apply(addresses.dsn, admin_dsn=addresses.admin_dsn, contract=contract, wait=wait)
    await sql_logins.complete(addresses.dsn)
    return applied


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("migrate", help="bring the database up to date")
    parser.add_argument(
        "--admin-dsn",
        metavar="URL",
        help="a superuser's address of the same database, to harden SQL access (embedded: not needed)",
    )
    parser.add_argument(
        "--contract", action="store_true", help="take away, too, what only older versions use; end those first"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Apply what is missing and name it."""
    with database(settings) as addresses:
        admin_dsn = args.admin_dsn or addresses.admin_dsn
        applied = migrate(DatabaseUrls(addresses.dsn, admin_dsn), contract=args.contract)
    say(f"applied: {', '.join(applied)}" if applied else "the database is up to date")
    return 0


def make_folder(folder: Path) -> Path:
    """Make a folder, and those above it that are missing, for us alone; one that exists keeps its mode."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandError(f"the folder {folder} cannot be made: {error.strerror}") from error
    return folder


def read(path: Path) -> str | None:
    """Return the text of a private file, or None when there is none; raise CommandError when it is not for us."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """Write a private file all at once, over what was there."""
    half = path.with_name(f"{path.name}.{token(4).hex()}")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error


def kept(path: Path, made: str) -> str:
    """Return the text kept in `path`; the first caller's `made` becomes that text, also when several come at once."""
    known = read(path)
    if known is not None and known.strip():
        return known.strip()
    make_folder(path.parent)
    half = path.with_name(f"{path.name}.{token(4).hex()}")
    write(half, made + "\n")
    try:
        os.link(half, path)
    except FileExistsError:
        return (read(path) or made).strip()
    finally:
        half.unlink()
    return made


_SHORTEST = 16


def root_secret(settings: Settings) -> str:
    """Return the secret of this installation; raise CommandError for one too short to be one."""
    if settings.secret is None:
        return kept(settings.data_dir / "secret", token(32).hex())
    if len(settings.secret) < _SHORTEST:
        raise CommandError(
            f"WORKBENCH_SECRET is shorter than {_SHORTEST} characters; make one with: openssl rand -hex 32"
        )
    return settings.secret
