"""The Postgres server of the bench, and its databases."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg
from psycopg import sql

from api.auth import keys
from api.auth.rotation import require_secret
from api.crypto import Keyring
from api.embedded import EmbeddedPostgres
from api.embedded.postmaster import read_pid_file
from api.store.migrate import migrate

SECRET = "bench-secret-of-more-than-forty-characters"
_TIMEOUT_MS = 600_000


class Postgres(msgspec.Struct, frozen=True):
    """The bench's server."""

    pid: int
    dsn: str
    admin_dsn: str
    home: Path


class Database(msgspec.Struct, frozen=True):
    """A migrated database with one organization, and the keys of the organization."""

    dsn: str
    live_key: str
    workbench_key: str


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """Run an embedded server with the settings of the product, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        embedded = EmbeddedPostgres(Path(folder))
        try:
            with embedded as server:
                pid_file = read_pid_file(embedded.data)
                assert pid_file is not None
                yield Postgres(pid_file.pid, server.dsn, server.admin_dsn, Path(folder))
        finally:
            shutil.rmtree(embedded.data.parent, ignore_errors=True)


def prepared(server: Postgres, name: str) -> Database:
    """Make a migrated database with an organization and its keys."""
    return asyncio.run(_prepare(create(server, name)))


def create(server: Postgres, name: str) -> str:
    """Make an empty database; return its DSN."""
    execute(server.dsn, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return urlsplit(server.dsn)._replace(path=f"/{name}").geturl()


def admin_dsn(server: Postgres, database: Database) -> str:
    """Return the DSN of a superuser: for others, COPY refuses tables with row-level security."""
    return urlsplit(server.admin_dsn)._replace(path=urlsplit(database.dsn).path).geturl()


def lift_temp_file_limit(admin_dsn: str) -> None:
    """Let the existing roles of readers write temporary files without a limit: ten million events need 1 GB."""
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        roles = "SELECT rolname FROM pg_roles WHERE rolconfig::text LIKE '%temp_file_limit%'"
        for (role,) in connection.execute(roles).fetchall():
            connection.execute(sql.SQL("ALTER ROLE {} SET temp_file_limit = -1").format(sql.Identifier(role)))


async def _prepare(dsn: str) -> Database:
    await migrate(dsn)
    keyring = Keyring(SECRET)
    await require_secret(dsn, keyring)  # afterwards `fill` stores contacts that no secret can read
    await keys.create_org(dsn, "bench")
    live = await keys.create(dsn, keyring, "bench", "live", None, "bench")
    return Database(dsn, live, await keys.create(dsn, keyring, "bench", "workbench", None, "bench"))


def connect(dsn: str) -> psycopg.Connection:
    """Connect with a statement timeout; every statement commits by itself."""
    options = f"-c statement_timeout={_TIMEOUT_MS} -c workbench.org=*"
    return psycopg.connect(dsn, connect_timeout=10, autocommit=True, options=options)


def execute(dsn: str, statement: sql.Composed | sql.SQL) -> None:
    """Run one statement on a new connection."""
    with connect(dsn) as connection:
        connection.execute(statement)


def stored_events(database: Database) -> int:
    """Count the events of all organizations."""
    with connect(database.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM workbench.events").fetchone()
    assert row is not None
    return int(row[0])
