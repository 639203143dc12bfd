"""Every test uses a real Postgres: one server per session, one migrated template, one clone per test.

`DATABASE_URL`, if set, names the server and a superuser, because tests harden the server and create roles. Otherwise an
embedded server runs in a temporary folder, with the programs in `WORKBENCH_POSTGRES_BIN` if that is set.
"""

import gc
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from api.clock import token
from api.embedded import Server
from api.store.migrate import migrate
from tests.servers import copy_database, create_database, database_dsn, drop_database, open_server

pytest_plugins = ["tests.installation", "tests.running"]
hypothesis.settings.register_profile(
    "tests", deadline=None, database=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(  # make mutants: the same few inputs for each, and the first failure is enough
    "mutants",
    hypothesis.settings.get_profile("tests"),
    derandomize=True,
    max_examples=20,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("tests")
# A shell that runs pytest in the background lets it ignore Ctrl-C, and its child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Containers set this. Tests start hundreds of processes, and each would compile 220 modules: 0.5 s of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # of the workers of xdist, too
os.environ["PGOPTIONS"] = "-c workbench.org=*"  # queries of the tests themselves see every organization
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads that wait busily, 0.1 s of CPU time in each process
# Each client and process reads the authorities of the system, 20 ms of CPU time. No test connects to the internet.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))

# Tests of the whole system (`tests.running`), which takes 10 s of CPU time to start.
_SYSTEM_FOLDERS = "actions backtest browser canvas display git notebooks workbench"
_OF_SYSTEM = tuple(
    f"tests/{path}"
    for path in (*_SYSTEM_FOLDERS.split(), "chain/test_notebook", "cli/test_public_url", "clients/test_docs")
)
# What takes long is begun first, so that all workers end at about the same time.
_LONG = ("tests/torture", *_OF_SYSTEM, "tests/fidelity", "tests/promises", "tests/cli")


class _ByFile(LoadFileScheduling):
    """Gives one worker the tests of a file, those of tests/torture, which share one run, and those of the system.

    The parts of the fidelity machine are long and share nothing, so each may have a worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/fidelity/test_week.py"):
            return nodeid
        if nodeid.startswith("tests/torture/"):
            return "torture"
        return "system" if nodeid.startswith(_OF_SYSTEM) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    config.option.loadscopereorder = False  # xdist would begin with the files that have most tests
    return _ByFile(config, log)


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Start one worker more than there are processors: tests wait for processes and clocks a quarter of their time."""
    return (yield) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> int:
        return next((number for number, path in enumerate(_LONG) if item.nodeid.startswith(path)), len(_LONG))

    for item in items:
        uses_system = isinstance(item, pytest.Function) and "running" in item.fixturenames
        if uses_system and not item.nodeid.startswith(_OF_SYSTEM):
            raise pytest.UsageError(
                f"{item.nodeid} uses `running`: add it to _OF_SYSTEM, or a second system is started"
            )
    items.sort(key=order)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: half a million objects are made that stay, in 0.6 of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape output that UTF-8 cannot encode: xdist sends reports to the main process as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of the session; `admin_dsn` has a superuser."""
    with open_server("tests", _memory_folder(), _SERVER_SETTINGS) as server:
        yield server


def _memory_folder() -> Path | None:
    """Return a file system in memory with room for the server, or None. A clone has 600 files, which a disk delays."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        return None
    return folder if min(shutil.disk_usage(folder).free, psutil.virtual_memory().available) > _NEEDED_BYTES else None


_NEEDED_BYTES = 4 << 30
_SERVER_SETTINGS = {
    # If a test ends while its pool connects, the backend still waits for the client to authenticate, by default for a
    # minute, and DROP DATABASE waits for the backend.
    "authentication_timeout": "3s",
    "wal_compression": "off",  # it takes most of the CPU time of a clone
    "max_wal_size": "512MB",
    "shared_buffers": "128MB",
}
if "WORKBENCH_POSTGRES_BIN" not in os.environ:  # Postgres 15 has no such setting
    _SERVER_SETTINGS["scram_iterations"] = "1"  # 4,096 take 2 of the 6 ms of CPU time of each connection


@pytest.fixture(scope="session")
async def template(postgres: Server) -> AsyncIterator[str]:
    """The name of a migrated database without connections, from which tests clone theirs."""
    name = f"template_{token(4).hex()}"
    create_database(postgres, name)
    await migrate(database_dsn(postgres.dsn, name), admin_dsn=database_dsn(postgres.admin_dsn, name))
    yield name
    drop_database(postgres, name)


@pytest.fixture
def database_url(postgres: Server, template: str) -> Iterator[str]:
    """A new migrated database for this test."""
    with clone(postgres, template) as dsn:
        yield dsn


@contextmanager
def clone(postgres: Server, template: str) -> Iterator[str]:
    """Yield the address of a new migrated database, and drop it at the end."""
    name = f"test_{token(8).hex()}"
    copy_database(postgres, name, template)
    try:
        yield database_dsn(postgres.dsn, name)
    finally:
        drop_database(postgres, name)
