"""Starts real API processes that receive raw bytes. They have no database, because refused requests need none."""

import json
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from tests.answers import Answer

TIMEOUT_S = 20.0  # only a server that hangs takes so long


class Process:
    """A process of `tests/wire/process.py`: its port and its stderr."""

    def __init__(self, port: int, stderr: IO[bytes]) -> None:
        self.port = port
        self._stderr = stderr

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Yield a connection without Nagle's algorithm: every piece is sent at once."""
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client

    def send(self, *pieces: bytes) -> list[Answer]:
        """Send pieces; return the answers when the server has closed the connection."""
        with self.connected() as client:
            with suppress(ConnectionError):  # it may close before all is sent; its answer is still readable
                for piece in pieces:
                    client.sendall(piece)
            return until_closed(client)

    def trickle(self, sent: bytes) -> list[Answer]:
        """Send a byte now and then until the server closes the connection; return its answers."""
        with self.connected() as client, suppress(ConnectionError):
            for byte in sent:
                client.send(bytes([byte]))
                if select.select([client], [], [], 0.05)[0]:
                    break
            return until_closed(client)
        return []

    def requests(self) -> list[dict[str, str]]:
        """Return the requests that reached handlers since the last call."""
        return self._report()["requests"]  # type: ignore[no-any-return]

    def cancelled(self) -> list[float]:
        """Return the seconds of the `/slow` requests that were cancelled, since the process began."""
        return self._report()["cancelled"]  # type: ignore[no-any-return]

    def connections(self, wanted: int = 1) -> int:
        """Return the number of other connections, after waiting for it to fall to `wanted`."""
        due = time.monotonic() + TIMEOUT_S
        while (count := self._report()["connections"] - 1) > wanted and time.monotonic() < due:
            time.sleep(0.05)
        return count  # type: ignore[no-any-return]

    def log(self) -> bytes:
        """Return the output on stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read()

    def _report(self) -> dict[str, Any]:
        (answer,) = self.send(b"GET /recorded HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return json.loads(answer.body)  # type: ignore[no-any-return]


def until_closed(client: socket.socket) -> list[Answer]:
    """Return the answers until the server closes the connection; fail if it does not."""
    received = b""
    with suppress(ConnectionError):
        while more := client.recv(1_048_576):
            received += more
    answers = []
    while received:
        answers.append(Answer(received))
        received = answers[-1].rest
    return answers


@pytest.fixture(scope="package")
def process() -> Iterator[Process]:
    """A process with the default timeouts."""
    with _started() as started:
        yield started


@pytest.fixture(scope="package")
def impatient() -> Iterator[Process]:
    """A process that waits half a second for a request and one second for an answer."""
    with _started("0.5", "1.0") as started:
        yield started


@contextmanager
def _started(*timeouts: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.wire.process", *timeouts]
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=stderr) as started,
    ):
        try:
            assert started.stdout is not None
            yield Process(int(started.stdout.readline()), stderr)
        finally:
            started.terminate()
