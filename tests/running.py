"""Runs the whole system once per session, as `make up` does: embedded Postgres, demo organization, API and engine.

Tests share it, so each one uses its own names for automations and contacts.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from workbench import Workbench


class Running(msgspec.Struct, frozen=True):
    """The URL and the folder of the system, and the keys of the demo organization by kind."""

    url: str
    keys: dict[str, str]
    folder: Path

    def workbench(self) -> Workbench:
        """Return a workbench of the demo organization."""
        return Workbench(self.url, self.keys["workbench"], events_key=self.keys["live"])

    def workbench_with(self, scopes: str) -> Workbench:
        """Return a workbench of the demo organization with a new key, which has these scopes."""
        command = [sys.executable, "-m", "api", "key", "create", "--org", "demo", "--kind", "workbench"]
        environment = {**os.environ, "WORKBENCH_DATA_DIR": str(self.folder / "data")}
        environment.pop("DATABASE_URL", None)
        created = subprocess.run(
            [*command, "--scopes", scopes], env=environment, capture_output=True, text=True, check=True
        )
        return Workbench(self.url, created.stdout.strip(), events_key=self.keys["live"])

    def environment(self) -> dict[str, str]:
        """Return the environment of a notebook."""
        return {
            **{name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PGOPTIONS")},
            "WORKBENCH_URL": self.url,
            "WORKBENCH_KEY": self.keys["workbench"],
            "WORKBENCH_EVENTS_KEY": self.keys["live"],
            "WORKBENCH_DATA_DIR": str(self.folder / "data"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "IPYTHONDIR": str(self.folder / "ipython"),
        }


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    """The whole system, for all tests of the session."""
    with run_system() as running:
        yield running


@contextmanager
def run_system() -> Iterator[Running]:
    """Run `workbench up` without Lab, on a free port, in a temporary folder; it starts in about 17 s."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-up-"))
    folder.chmod(0o755)
    port = free_port()
    command = [sys.executable, "-m", "api", "up", "--no-lab", "--port", str(port), "--data-dir", str(folder / "data")]
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PGOPTIONS")}
    environment["WORKBENCH_INGEST_RATE"] = "0"
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Running(f"http://127.0.0.1:{port}", _keys(process), folder)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _keys(process: subprocess.Popen[str]) -> dict[str, str]:
    """Read the output of `up` until it is ready; return the keys in it."""
    output, keys = "", {}
    for line in process.stdout or ():
        output += line
        match line.split():
            case ["live" | "test" | "publishable" | "workbench" as kind, key]:
                keys[kind] = key
        if "Ctrl-C" in line:
            return keys
    raise AssertionError(output)
