"""The real Postgres for every test: one server per session, one migrated template, one clone per test.

`DATABASE_URL` set: that server, by a superuser's address (tests harden it and make roles); otherwise an embedded one in a temporary
folder, of the programs in `WORKBENCH_POSTGRES_BIN` if that is set.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from api import settings
from api.clock import token
from api.embedded import EmbeddedPostgres, Server
from api.store.migrate import migrate
from tests.servers import at, copy_database, create_database, drop_database, given

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
    read = settings.read()
    if read.database_url is not None:
        with given(read.database_url) as server:
            yield server
        return
    home = Path(tempfile.mkdtemp(prefix="workbench-tests-"))
    # A pool that was connecting when its test ended stands still in the middle: DROP DATABASE waits for its back end.
    embedded = EmbeddedPostgres(home, bin_dir=read.postgres_bin, settings={"authentication_timeout": "3s"})
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
    create_database(postgres, name)
    await migrate(at(postgres.dsn, name), admin_dsn=at(postgres.admin_dsn, name))
    yield name
    drop_database(postgres, name)


@pytest.fixture
def database_url(postgres: Server, template: str) -> Iterator[str]:
    """A fresh migrated database of this test's own."""
    with clone(postgres, template) as dsn:
        yield dsn


@contextmanager
def clone(postgres: Server, template: str) -> Iterator[str]:
    """Give a fresh migrated database, dropped afterwards."""
    name = f"test_{token(8).hex()}"
    copy_database(postgres, name, template)
    try:
        yield at(postgres.dsn, name)
    finally:
        drop_database(postgres, name)
