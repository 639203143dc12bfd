"""The real Postgres for every test: one server per session, one migrated template, one clone per test.

`DATABASE_URL` set: that server, as a superuser (tests harden it and make roles); otherwise an embedded one in a temporary folder.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import hypothesis
import psycopg
import pytest
from psycopg import sql

from api import settings
from api.clock import token
from api.embedded import EmbeddedPostgres, Server
from api.store.migrate import migrate

pytest_plugins = ["tests.running"]
hypothesis.settings.register_profile(
    "tests", deadline=None, database=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")
os.environ["PGOPTIONS"] = "-c workbench.org=*"  # what a test itself asks the database sees every organization


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test wrote goes from worker to worker as UTF-8, also where it wrote what UTF-8 cannot hold."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The session's server; `admin_dsn` is a superuser's."""
    given = settings.read().database_url
    if given is not None:
        with psycopg.connect(given) as connection:
            assert connection.info.parameter_status("is_superuser") == "on", "DATABASE_URL must be a superuser's"
        yield Server(given, given, "", owned=False)
        return
    home = Path(tempfile.mkdtemp(prefix="workbench-tests-"))
    # A pool that was connecting when its test ended stands still in the middle: DROP DATABASE waits for its back end.
    embedded = EmbeddedPostgres(home, settings={"authentication_timeout": "3s"})
    try:
        with embedded as server:
            yield server
    finally:
        shutil.rmtree(embedded.data.parent, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
async def template(postgres: Server) -> AsyncIterator[str]:
    """The name of a migrated database without connections, from which tests clone theirs."""
    name = f"template_{token(4).hex()}"
    _execute(postgres, "CREATE DATABASE {}", name)
    await migrate(_at(postgres.dsn, name), admin_dsn=_at(postgres.admin_dsn, name))
    yield name
    _execute(postgres, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def database_url(postgres: Server, template: str) -> Iterator[str]:
    """A fresh migrated database of this test's own."""
    with clone(postgres, template) as dsn:
        yield dsn


@contextmanager
def clone(postgres: Server, template: str) -> Iterator[str]:
    """Give a fresh migrated database, dropped afterwards.

    Measured, create + drop: wal_log 200 + 11 ms, file_copy 130 + 400 ms (it forces checkpoints).
    """
    name = f"test_{token(8).hex()}"
    _execute(postgres, "CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log", name, template)
    yield _at(postgres.dsn, name)
    _execute(postgres, "DROP DATABASE {} WITH (FORCE)", name)


def _at(dsn: str, database: str) -> str:
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


def _execute(server: Server, statement: str, *names: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
