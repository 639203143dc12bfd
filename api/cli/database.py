"""The database of a command, and `workbench migrate`.

The database is the one in `DATABASE_URL`, or otherwise the embedded server. A command joins an embedded server that is
running. If none is, the command starts it, migrates it (no other process can have done so) and stops it at its end.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import msgspec

from api.cli.errors import Subparsers, note, say
from api.settings import Settings


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


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("migrate", help="bring the database up to date")
    parser.add_argument(
        "--admin-dsn",
        metavar="URL",
        help="URL of the same database for a superuser, to harden SQL access (not needed for the embedded server)",
    )
    parser.add_argument(
        "--contract", action="store_true", help="also remove what only older versions use; stop those versions first"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    with database(settings) as urls:
        applied = migrate(DatabaseUrls(urls.dsn, args.admin_dsn or urls.admin_dsn), contract=args.contract)
    say(f"applied: {', '.join(applied)}" if applied else "the database is up to date")
    return 0
