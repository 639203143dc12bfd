"""Real processes on a database of their own: `python -m api serve` and `python -m api engine`, over real sockets."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from api.auth import keys
from api.crypto import Keyring

SECRET = "a-secret-of-forty-characters-for-tests-xx"


class Installation:
    """One installation under test: start and kill its processes, talk to its APIs."""

    def __init__(self, dsn: str, logs: Path) -> None:
        self.dsn = dsn
        self.keyring = Keyring(SECRET)
        self.log: Path | None = None  # of all processes together, where it is given
        self._logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "WORKBENCH_SECRET": SECRET,
            "WORKBENCH_INGEST_RATE": "0",
            "WORKBENCH_DATA_DIR": str(logs),
        }

    def start_api(self, *arguments: str, port: int | None = None, wait: bool = True, **environment: str) -> "Api":
        """Start an API on a port, by default on a free one; `wait` until it is ready."""
        port = port or _free_port()
        process = self._start(["serve", "--port", str(port), *arguments], environment)
        api = Api(port, process)
        if wait:
            api.wait_until_ready()
        return api

    def start_engine(self, **environment: str) -> subprocess.Popen[bytes]:
        return self._start(["engine"], environment)

    def _start(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        path = self.log or self._logs / f"{arguments[0]}-{len(self._processes)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "api", *arguments],
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    async def organization(self, name: str = "demo") -> dict[str, str]:
        """Create an organization; return its keys by kind."""
        await keys.create_org(self.dsn, name)
        kinds = ("live", "test", "workbench")
        return {kind: await keys.create(self.dsn, self.keyring, name, kind, None, kind) for kind in kinds}

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(20)


class Api:
    """One API process, or the parent of several."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = process

    def client(self, key: str) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/api/v1", headers={"authorization": f"Bearer {key}"}, timeout=10)

    def wait_until_ready(self) -> None:
        until(lambda: self._status() == 200, "the API is ready", 60)

    def _status(self) -> int:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code
        except httpx.TransportError:
            return 0


def until(holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Poll a condition until it holds; a failure names it."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def installation(database_url: str, tmp_path: Path) -> Iterator[Installation]:
    """An installation; the processes that the test starts are stopped at its end."""
    built = Installation(database_url, tmp_path)
    yield built
    built.stop()
