"""Processes under measurement: start one on a free port, wait until it answers, read its CPU time, stop it."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def running(arguments: list[str], port: int, environment: dict[str, str]) -> Iterator[int]:
    """Run `python <arguments>` until the block ends; give its pid once something listens on `port` (0: at once)."""
    with subprocess.Popen([sys.executable, *arguments], env={**os.environ, **environment}) as process:
        try:
            _wait(process, port)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 30
    while port:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the process did not start")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except OSError:
            time.sleep(0.05)
        else:
            return


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and its children have used, in seconds."""
    return sum(_own_cpu(each) for each in (pid, *_children(pid)))


def _own_cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / _TICKS


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(each) for each in text.split()]
