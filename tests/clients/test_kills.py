"""Events that a client has tracked are stored once each, although producers and servers are killed again and again.

`KILLED_PRODUCERS=200` and `KILLED_SERVERS=200` kill so many of them, for each client. Rows are counted by a number
in the payload, so that an event that was stored under two keys would be seen.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.clients.conftest import Start
from tests.installation import Installation, until
from tests.promises.conftest import query
from tests.running import free_port

PRODUCERS = int(os.environ.get("KILLED_PRODUCERS", "5"))
SERVERS = int(os.environ.get("KILLED_SERVERS", "2"))
TIMEOUT_S = 240


def track(process: "subprocess.Popen[str]", tracked: list[str]) -> threading.Thread:
    """Add the serial numbers that a producer prints to a list, until it ends."""

    def read() -> None:
        # The last line may be cut off; its event may be stored or not.
        tracked.extend(line.strip() for line in process.stdout or () if line.endswith("\n"))

    assert process.stderr is not None
    threading.Thread(target=process.stderr.read).start()  # a full pipe would stop the producer at its next warning
    reader = threading.Thread(target=read)
    reader.start()
    return reader


async def stored(installation: Installation) -> list[str]:
    """Return the serial number of each row, in their order."""
    rows = await query(installation.dsn, "SELECT payload->>'serial' AS serial FROM events")
    return sorted(serial for (serial,) in rows)


async def stored_since(installation: Installation, transaction: int) -> tuple[int, int]:
    """Return how many events later transactions stored, and the last one of these."""
    statement = (
        "SELECT count(*), coalesce(max(stored_in), %s) FROM events"
        " WHERE org_id = (SELECT id FROM organizations) AND stored_in > %s"
    )
    ((count, last),) = await query(installation.dsn, statement, transaction, transaction)
    return int(count), int(last)


@contextmanager
def forking_servers(installation: Installation, port: int) -> Iterator[Callable[[], int]]:
    """Yield a function that starts a server on the port, and returns the id of its process."""
    command = [sys.executable, "-m", "tests.clients.servers"]
    with subprocess.Popen(
        command,
        env=installation.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:

        def start() -> int:
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(f"{port}\n")
            parent.stdin.flush()
            return int(parent.stdout.readline())

        try:
            yield start
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def kill_server(process_id: int) -> None:
    """Kill a process that is not our own child, and wait until it is gone."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(process_id, signal.SIGKILL)
            time.sleep(0.001)


def finish(process: "subprocess.Popen[str]") -> None:
    """Let a producer send everything, and end."""
    assert process.stdin is not None
    process.stdin.close()
    until(lambda: process.poll() is not None, "the producer has sent everything", TIMEOUT_S)
    assert process.returncode == 0


async def test_killed_producers_lose_and_double_nothing(installation: Installation, start: Start) -> None:
    keys = await installation.organization()
    url = installation.start_api().url
    tracked: list[str] = []
    for kill in range(PRODUCERS):
        with start("endless", url, keys["live"]) as process:
            before = len(tracked)
            reader = track(process, tracked)
            until(lambda before=before: len(tracked) > before, "an event was tracked", 60)  # type: ignore[misc]
            await asyncio.sleep(0.01 * (kill % 30))  # before, while and after the events are sent
            process.send_signal(signal.SIGKILL)
            reader.join()
    with start("endless", url, keys["live"]) as last:
        reader = track(last, tracked)
        finish(last)
        reader.join()
    events = await stored(installation)
    assert set(tracked) <= set(events)
    assert len(events) == len(set(events))
    assert len(set(events) - set(tracked)) <= PRODUCERS  # one at most from each killed process


async def test_killed_servers_lose_and_double_nothing(installation: Installation, start: Start) -> None:
    keys = await installation.organization()
    port = free_port()
    tracked: list[str] = []
    before = 0
    with (
        start("endless", f"http://127.0.0.1:{port}", keys["live"]) as process,
        forking_servers(installation, port) as start_server,
    ):
        reader = track(process, tracked)
        for number in range(SERVERS):
            _, before = await stored_since(installation, before)
            server = start_server()
            until_s = time.monotonic() + TIMEOUT_S
            while True:  # it is killed while it answers
                rows, _ = await stored_since(installation, before)
                if rows > 49 * (number % 4):
                    break
                assert process.poll() is None
                assert time.monotonic() < until_s
                await asyncio.sleep(0.01 + 0.02 * (number % 3))
            kill_server(server)
        installation.start_api(port=port)
        finish(process)
        reader.join()
    assert len(tracked) > SERVERS
    assert await stored(installation) == sorted(tracked)
