"""Limits processes to a share of a core, like a container with a CPU limit. Linux only.

A process that has used its share of a period is stopped for the rest of it. Two processes can then be compared with one
on a machine that has too few cores for both, the database and the load: only the resources that they share (locks,
rows, the database) can slow them down.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.2
_PERIOD_S = 0.05
_LOOK_S = 0.002
_NANOSECONDS = 1e-9


@contextlib.contextmanager
def limited(*pids: int, share: float = SHARE) -> Iterator[None]:
    """Limit each of these processes to a share of a core until the block ends."""
    over = threading.Event()
    governors = [threading.Thread(target=_govern, args=(pid, share * _PERIOD_S, over)) for pid in pids]
    for governor in governors:
        governor.start()
    try:
        yield
    finally:
        over.set()
        for governor in governors:
            governor.join()


def _govern(pid: int, allowed: float, over: threading.Event) -> None:
    try:
        while not over.is_set():
            ends, used = time.monotonic() + _PERIOD_S, _cpu_seconds(pid)
            while (left := ends - time.monotonic()) > 0 and not over.is_set():
                if _cpu_seconds(pid) - used >= allowed:
                    os.kill(pid, signal.SIGSTOP)
                    over.wait(left)
                    os.kill(pid, signal.SIGCONT)
                else:
                    over.wait(min(_LOOK_S, left))
    finally:
        os.kill(pid, signal.SIGCONT)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of the threads of a process, to the nanosecond."""
    spent = (task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(schedstat.read_text().split()[0]) for schedstat in spent) * _NANOSECONDS
