"""The database and the root secret of a command, and `workbench migrate`.

The database is the one in `DATABASE_URL`, or otherwise the embedded server. A command joins an embedded server that is
running. If none is, the command starts it, migrates it (no other process can have done so) and stops it at its end.
"""

import argparse
import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import msgspec

from api import private_files
from api.cli import CommandError, network
from api.cli.errors import note, say
from api.clock import token
from api.crypto import Keyring
from api.process import install_logging
from api.settings import Settings

_MIN_SECRET_LENGTH = 16

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def root_secret(settings: Settings) -> str:
    """Return the secret of this installation; create it on first use. Raise CommandError if it is too short.

    It is `WORKBENCH_SECRET`, or one that is kept in the data folder. Emails are encrypted and API keys are hashed with
    keys derived from it, so without it they are lost.
    """
    if settings.secret is None:
        return private_files.read_or_create(settings.data_dir / "secret", token(32).hex())
    if len(settings.secret) < _MIN_SECRET_LENGTH:
        raise CommandError(
            f"WORKBENCH_SECRET is shorter than {_MIN_SECRET_LENGTH} characters; make one with: openssl rand -hex 32"
        )
    return settings.secret


def keyring(settings: Settings) -> Keyring:
    return Keyring(root_secret(settings))


class DatabaseUrls(msgspec.Struct, frozen=True):
    """URLs of the database: for the application, and for a superuser if the server is embedded."""

    dsn: str
    admin_dsn: str | None


@contextmanager
def database(settings: Settings) -> Iterator[DatabaseUrls]:
    """Yield the URLs of a database that accepts connections; raise EmbeddedError."""
    if settings.database_url is not None:
        yield DatabaseUrls(settings.database_url, None)
        return
    from api.embedded import EmbeddedPostgres

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    postgres = EmbeddedPostgres(settings.data_dir, bin_dir=settings.postgres_bin, report=note)
    # The default action of SIGTERM ends the process without running `finally`, and the server would keep running.
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        with postgres as server:
            urls = DatabaseUrls(server.dsn, server.admin_dsn)
            if server.owned:
                migrate(urls)
            yield urls
    finally:
        signal.signal(signal.SIGTERM, previous)


def run_on_database(
    settings: Settings,
    function: Callable[Concatenate[str, _Parameters], Coroutine[Any, Any, _Result]],
    *args: _Parameters.args,
    **kwargs: _Parameters.kwargs,
) -> _Result:
    """Call a function whose first argument is the URL of the database; return its result."""
    with database(settings) as urls:
        return asyncio.run(function(urls.dsn, *args, **kwargs))


@contextmanager
def process_database(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[DatabaseUrls, str]]:
    """Prepare a process that runs until it is stopped; yield the URLs of the database, and the root secret."""
    secret = root_secret(settings)
    with database(settings) as urls:
        install_logging()
        require_fit_database(urls)
        if args.leash:
            network.follow_parent()
        yield urls, secret


def require_fit_database(urls: DatabaseUrls) -> None:
    """Raise UnfitServerError or MigrationError if this version cannot use the database; ignore an unreachable one."""
    from api.store.migrate import require_fit_server

    asyncio.run(require_fit_server(urls.dsn))


def migrate(urls: DatabaseUrls, *, contract: bool = False) -> list[str]:
    """Bring the database and its direct logins up to date; return the names of the applied migrations.

    `contract` also removes what only older versions use.
    """
    from api.auth import sql_logins
    from api.store import migrate as store

    async def apply() -> list[str]:
        wait = store.LockWait(report=note)
        applied = await store.migrate(urls.dsn, admin_dsn=urls.admin_dsn, contract=contract, wait=wait)
        await sql_logins.complete(urls.dsn)
        return applied

    return asyncio.run(apply())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin-dsn",
        metavar="URL",
        help="URL of the same database for a superuser, to harden SQL access (not needed for the embedded server)",
    )
    parser.add_argument(
        "--contract", action="store_true", help="also remove what only older versions use; stop those versions first"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> None:
    with database(settings) as urls:
        applied = migrate(DatabaseUrls(urls.dsn, args.admin_dsn or urls.admin_dsn), contract=args.contract)
    say(f"applied: {', '.join(applied)}" if applied else "the database is up to date")
