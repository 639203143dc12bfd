"""Provides home folders of embedded servers, which are removed after the tests."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.embedded import EmbeddedPostgres, postmaster
from api.embedded.paths import find_paths


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home for a module: only the first test runs initdb, and every test starts and stops the server."""
    folder = tmp_path_factory.mktemp("embedded") / "home"
    yield folder
    _sweep(folder)


@pytest.fixture
def fresh_home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    _sweep(tmp_path / "home")


@pytest.fixture
def embedded(home: Path) -> Iterator[Callable[[], EmbeddedPostgres]]:
    servers: list[EmbeddedPostgres] = []

    def make() -> EmbeddedPostgres:
        servers.append(EmbeddedPostgres(home))
        return servers[-1]

    yield make
    for postgres in servers:
        postgres.stop()


def _sweep(home: Path) -> None:
    paths = find_paths(home)
    if paths is None:
        return
    for pid in postmaster.list_processes(paths.data):
        os.kill(pid, signal.SIGQUIT)
    shutil.rmtree(paths.state, ignore_errors=True)
