"""The database and the root secret of a command, and `workbench migrate`.

The database is the one in `DATABASE_URL`, or otherwise the embedded server. A command joins an embedded server that is
running. If none is, the command starts it, migrates it (no other process can have done so) and stops it at its end.
"""

import argparse
import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import msgspec

from api import private_files
from api.cli import CommandError, network
from api.cli.errors import add_database, note, say
from api.clock import token
from api.crypto import Keyring, min_secret_length
from api.process import install_logging
from api.settings import Settings

MISMATCH_ADVICE = "use the secret from before, or the one of the last `workbench secret rotate`; see docs/security.md"
_MIN_SECRET_LENGTH = 16
_SECRET_CHECK_INTERVAL_S = 1.0

_log = logging.getLogger("workbench.secret")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def read_secret(settings: Settings) -> str | None:
    """Return `WORKBENCH_SECRET`, otherwise the secret in the data folder, or None. Raise CommandError.

    Emails are encrypted and API keys are hashed with keys derived from it, so without it they are lost.
    """
    if settings.secret is not None:
        secret, source, advice = settings.secret, "WORKBENCH_SECRET", "make one with: openssl rand -hex 32"
    else:
        file = settings.data_dir / "secret"
        if (stored := private_files.read(file)) is None:
            return None
        secret, source, advice = stored.strip(), f"the secret in {file}", "restore the file from your copy"
    if not secret.isprintable():  # bytes that are not UTF-8 arrive as surrogates, which are not printable
        raise CommandError(f"{source} contains characters that cannot be printed; {advice}")
    if min_secret_length(secret) < _MIN_SECRET_LENGTH:
        raise CommandError(f"{source} is shorter than {_MIN_SECRET_LENGTH} characters; {advice}")
    return secret


def root_secret(settings: Settings, dsn: str) -> str:
    """Return the secret of this installation, which belongs to this database.

    A missing secret is created only for an empty database: data can be read only with the secret that sealed them.
    Raises CommandError if the secret is missing, not valid, or that of another database.
    """
    from api.auth import rotation

    file = settings.data_dir / "secret"
    secret = read_secret(settings)
    if secret is None:
        if asyncio.run(rotation.is_in_use(dsn)):
            raise CommandError(
                f"the secret {file} is missing, and the database contains data that only this secret can read; "
                "restore the file from your copy, or set WORKBENCH_SECRET"
            )
        secret = private_files.read_or_create(file, token(32).hex())
    require_own_secret(settings, dsn, secret)
    return secret


def require_own_secret(settings: Settings, dsn: str, secret: str) -> None:
    """Raise CommandError unless this secret belongs to this database."""
    from api.auth import rotation

    try:
        asyncio.run(rotation.require_secret(dsn, Keyring(secret)))
    except rotation.ForeignSecretError as error:
        source = "WORKBENCH_SECRET" if settings.secret is not None else str(settings.data_dir / "secret")
        raise CommandError(f"{source}: {error}; {MISMATCH_ADVICE}") from error


class DatabaseUrls(msgspec.Struct, frozen=True):
    """URLs of the database: for the application, and for a superuser if the server is embedded."""

    dsn: str
    admin_dsn: str | None


@contextmanager
def database(settings: Settings, *, create: bool = True) -> Iterator[DatabaseUrls]:
    """Yield the URLs of a database that accepts connections; raise EmbeddedError.

    If the data folder has no database, it is created, or, without `create`, CommandError is raised: it may be misspelt.
    """
    if settings.database_url is not None:
        yield DatabaseUrls(settings.database_url, None)
        return
    if not create and not (settings.data_dir / "postgres").exists():
        raise CommandError(f"there is no database in {settings.data_dir}; `workbench up` creates one")
    from api.embedded import EmbeddedPostgres

    postgres = EmbeddedPostgres(settings.data_dir, bin_dir=settings.postgres_bin, report=note)
    # The default action of SIGTERM ends the process without running `finally`, and the server would keep running.
    previous = signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        with postgres as server:
            urls = DatabaseUrls(server.dsn, server.admin_dsn)
            if server.owned:
                migrate(urls)
            yield urls
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit_on_sigterm(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def run_on_database(
    settings: Settings,
    function: Callable[Concatenate[str, _Parameters], Coroutine[Any, Any, _Result]],
    *args: _Parameters.args,
    **kwargs: _Parameters.kwargs,
) -> _Result:
    """Run `function(url, …)` on the URL of the database, and return its result."""
    with database(settings) as urls:
        return asyncio.run(function(urls.dsn, *args, **kwargs))


def run_with_keyring(
    settings: Settings,
    function: Callable[Concatenate[str, Keyring, _Parameters], Coroutine[Any, Any, _Result]],
    *args: _Parameters.args,
    **kwargs: _Parameters.kwargs,
) -> _Result:
    """Run `function(url, keyring, …)` on the URL and the keyring of the database, and return its result."""
    with database(settings) as urls:
        return asyncio.run(function(urls.dsn, Keyring(root_secret(settings, urls.dsn)), *args, **kwargs))


@contextmanager
def process_database(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[DatabaseUrls, str]]:
    """Prepare a process that runs until it is stopped; yield the URLs of the database, and the root secret."""
    read_secret(settings)  # an unusable one is reported before Postgres starts
    with database(settings) as urls:
        install_logging()
        require_fit_database(urls)
        with process_secret(settings, urls) as secret:
            if args.leash:
                network.follow_parent()
            yield urls, secret


@contextmanager
def process_secret(settings: Settings, urls: DatabaseUrls) -> Iterator[str]:
    """Yield the root secret for a process.

    If the database cannot be reached now, a thread checks the secret later: if it is foreign, the process gets SIGTERM,
    and CommandError is raised at the end.
    """
    from api.store.database import DatabaseUnavailableError, TransactionConflictError

    refusal: Future[NoReturn] = Future()
    try:
        secret = root_secret(settings, urls.dsn)
    except (DatabaseUnavailableError, TransactionConflictError):
        stored = read_secret(settings)
        if stored is None:
            raise
        secret = stored
        signal.signal(signal.SIGTERM, _exit_on_sigterm)  # until the event loop handles it
        threading.Thread(
            target=_stop_if_foreign, args=(settings, urls, secret, refusal), name="secret", daemon=True
        ).start()
    try:
        yield secret
    finally:
        if refusal.done():
            refusal.result()


def _stop_if_foreign(settings: Settings, urls: DatabaseUrls, secret: str, refusal: "Future[NoReturn]") -> None:
    """Wait for a database that can be used; if the secret does not belong to it, send SIGTERM."""
    try:
        while not try_require_own_secret(settings, urls, secret):
            time.sleep(_SECRET_CHECK_INTERVAL_S)
    except CommandError as error:
        _log.error("secret_refused", extra={"reason": str(error)})
        refusal.set_exception(error)
        os.kill(os.getpid(), signal.SIGTERM)


def try_require_own_secret(settings: Settings, urls: DatabaseUrls, secret: str) -> bool:
    """Return False if the database cannot be asked now. Raise CommandError unless this secret belongs to it."""
    from api.store.database import DatabaseUnavailableError, TransactionConflictError
    from api.store.migrate import MigrationError, UnfitServerError

    try:
        require_fit_database(urls)
        require_own_secret(settings, urls.dsn, secret)
    except (DatabaseUnavailableError, TransactionConflictError, MigrationError, UnfitServerError, OSError):
        return False
    return True


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
    add_database(parser)
    parser.add_argument(
        "--contract", action="store_true", help="also remove what only older versions use; stop those versions first"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> None:
    with database(settings) as urls:
        applied = migrate(DatabaseUrls(urls.dsn, args.admin_dsn or urls.admin_dsn), contract=args.contract)
    say(f"applied: {', '.join(applied)}" if applied else "the database is up to date")
