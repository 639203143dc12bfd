"""Processes under measurement: start one on a free port, wait until it answers, read CPU time and memory, stop it.

Linux only.
"""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0


class Service(msgspec.Struct, frozen=True):
    """A process that serves HTTP."""

    pid: int
    port: int


@contextlib.contextmanager
def running(*arguments: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[Service]:
    """Run `python <arguments>` until the block ends; `{port}` becomes a free port. Its output goes to `log`."""
    port = free_port()
    with beside(*(argument.format(port=port) for argument in arguments), log=log, environment=environment) as process:
        _wait_until_it_answers(process, port, log)
        yield Service(process.pid, port)


@contextlib.contextmanager
def beside(
    *arguments: str, log: Path, environment: dict[str, str] | None = None, talks: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `python <arguments>`, which serves no port, until the block ends. Its output goes to `log`.

    With `talks` the caller uses its stdin and stdout, and only its errors go to `log`.
    """
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else output,
            stderr=output,
        ) as process,
    ):
        try:
            yield process
        finally:
            _stop(process)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except OSError:
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
    raise RuntimeError(f"the process did not start; it said: {log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, including children that have ended."""
    children = _children(pid)
    spent = sum(_own_cpu(child) for child in (pid, *children))
    return (
        spent if _children(pid) == children else cpu_seconds(pid)
    )  # a child that ends meanwhile is counted twice or not at all


def backend_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with one thread, which the kernel counts in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def machine_cpu_seconds() -> float:
    """Return the CPU time of all processes of this machine, including the time stolen by its host."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]  # user nice system idle iowait irq softirq steal
    return sum(int(field) for position, field in enumerate(fields) if position not in (3, 4)) / _TICKS


def peak_memory(pid: int | Literal["self"]) -> int:
    """Return the peak resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the process {pid} has no memory of its own")


def _own_cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # ended meanwhile: its parent counts it now
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(part) for part in text.split()]
