"""`workbench up` as a whole: real processes on free ports, with an embedded Postgres of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.commands import http
from api.embedded import find, places, processes


class Running:
    """One `workbench up` and what it has said so far."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.port = port
        self.said = ""
        environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PGOPTIONS")}
        command = [
            sys.executable,
            "-m",
            "api",
            "up",
            "--no-lab",
            "--no-demo",
            "--port",
            str(port),
            "--data-dir",
            data_dir,
        ]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=data_dir.parent
        )

    def until(self, words: str) -> str:
        """Return all that was said up to the line with `words`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return self.said
        raise AssertionError(self.said)

    def end(self, *orders: signal.Signals) -> tuple[int, str]:
        """Send the signals; return the exit code and what was said last."""
        for order in orders:
            self.process.send_signal(order)
        last = self.process.communicate(timeout=60)[0]
        return self.process.returncode, last


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    if (found := places.existing(folder)) is not None:
        for pid in processes.workers(found.data):
            os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(found.state, ignore_errors=True)


def test_up_starts_everything_and_two_interruptions_stop_everything_once(data_dir: Path, port: int) -> None:
    up = Running(data_dir, port)
    summary = up.until("Ctrl-C stops everything.")
    assert f"http://127.0.0.1:{port}/api/v1" in summary
    assert http.status(port, "/readyz") == 200
    found = places.existing(data_dir)
    assert found is not None
    code, last = up.end(signal.SIGINT, signal.SIGINT)
    assert (code, last.split("\n")[:4]) == (0, ["stopped engine", "stopped api", "stopped Postgres", "stopped"])
    assert processes.workers(found.data) == []
    assert http.status(port, "/healthz") is None


def test_postgres_killed_is_started_again_and_everything_goes_on(data_dir: Path, port: int) -> None:
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    found = places.existing(data_dir)
    assert found is not None
    seen = processes.recorded(found.data)
    assert seen is not None
    os.kill(seen.pid, signal.SIGKILL)
    up.until("Postgres stopped; starting it again")
    while http.status(port, "/readyz") != 200:
        pass
    assert up.end(signal.SIGTERM)[0] == 0


def test_up_killed_takes_its_children_along_and_the_next_up_takes_postgres_over(data_dir: Path, port: int) -> None:
    killed = Running(data_dir, port)
    killed.until("Ctrl-C stops everything.")
    killed.end(signal.SIGKILL)
    assert find(data_dir) is not None
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    assert up.end(signal.SIGTERM)[0] == 0
    assert find(data_dir) is None


def test_a_taken_port_is_named_with_its_flag(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        code, said = Running(data_dir, port).end()
    assert code == 1
    assert said == f"workbench: port {port} is already in use; stop what listens there, or choose another with --port\n"
