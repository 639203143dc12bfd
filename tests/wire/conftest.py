"""Real API processes for these tests, spoken to with bytes; they need no database to refuse, and have none."""

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

PATIENCE = 20.0  # seconds; only a server that hangs takes so long


class Process:
    """`tests/wire/process.py`, where it listens, and what it says on stderr."""

    def __init__(self, port: int, stderr: IO[bytes]) -> None:
        self.port = port
        self._stderr = stderr

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Give a connection on which every byte travels at once."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client

    def say(self, *pieces: bytes) -> list[Answer]:
        """Send pieces; return the answers when the server has closed the connection."""
        with self.connected() as client:
            with suppress(ConnectionError):  # it may close before all is sent; what it said is there
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

    def seen(self) -> list[dict[str, str]]:
        """Return what handlers saw since this was asked last."""
        return self._told()["seen"]  # type: ignore[no-any-return]

    def connections(self, wanted: int = 1) -> int:
        """Return how many connections there are beside this one, which may take a moment to become as few as wanted."""
        due = time.monotonic() + PATIENCE
        while (found := self._told()["connections"] - 1) > wanted and time.monotonic() < due:
            time.sleep(0.05)
        return found  # type: ignore[no-any-return]

    def log(self) -> bytes:
        """Return all that was said on stderr."""
        self._stderr.seek(0)
        return self._stderr.read()

    def _told(self) -> dict[str, Any]:
        (answer,) = self.say(b"GET /seen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return json.loads(answer.body)  # type: ignore[no-any-return]


def until_closed(client: socket.socket) -> list[Answer]:
    """Return what is answered until the server closes the connection; a server that does not is a failure."""
    said = b""
    with suppress(ConnectionError):
        while more := client.recv(1_048_576):
            said += more
    answers = []
    while said:
        answers.append(Answer(said))
        said = answers[-1].rest
    return answers


@pytest.fixture(scope="package")
def process() -> Iterator[Process]:
    """A process as patient as any."""
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
