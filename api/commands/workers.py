"""`workbench serve --workers N`: API processes behind one port, watched, replaced, and renewed without losing a request.

Each place has a listening socket of its own in one SO_REUSEPORT group, so that the kernel spreads connections evenly
(of processes that accept from one common socket, one took 97 of 100). The sockets stay open here: what waits in the queue
of a process that died is answered by another. Processes are spawned afresh and run the code installed by now.

SIGHUP renews them one after another: the new one serves before the old one drains. SIGTERM and SIGINT let all drain.
"""

import logging
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import FrameType

from api.clock import monotonic_ns
from api.ingest.rate import SIZE

START_SECONDS = 60
DRAIN_SECONDS = 30  # more than a process gives itself
_LOOK = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
_FORGIVEN_SECONDS = 60

_log = logging.getLogger("workbench.workers")


def run(sockets: list[socket.socket], environment: Mapping[str, str]) -> None:
    """Keep one process for each socket until told to stop; `environment` is theirs."""
    orders = _Orders()
    with tempfile.TemporaryFile() as rates:
        rates.truncate(SIZE)
        inherited = [each.fileno() for each in sockets]
        places = [Place(_spawning(each, inherited, rates.fileno(), environment)) for each in inherited]
        outdated: list[Place] = []
        while not orders.stop:
            if orders.renew:
                orders.renew, outdated = False, list(places)
            for place in places:
                place.look()
            if outdated and all(place.settled for place in places):
                outdated.pop(0).renew()
            time.sleep(_LOOK)
        for each in sockets:
            each.close()  # whoever comes now is refused, not left waiting
        _end([process for place in places for process in place.processes])


class _Orders:
    """What signals asked for."""

    def __init__(self) -> None:
        self.stop = self.renew = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.renew = True
        else:
            self.stop = True


class Process:
    """One API process. Its stdin is a line to us, on which it says that it serves, and notices when we are gone."""

    def __init__(self, command: list[str], environment: Mapping[str, str], inherited: list[int]) -> None:
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(command, env=environment, stdin=theirs.fileno(), pass_fds=inherited)
        self.pid = self._process.pid
        self.serves = self.outdated = self.leaving = False
        self._started_ns = monotonic_ns()
        self._due_ns = self._started_ns + START_SECONDS * 1_000_000_000

    def look(self) -> int | None:
        """Note what has become of it, and kill it when it is overdue; return the exit code when it has ended."""
        code = self._process.poll()
        if code is not None:
            self._line.close()
        elif not self.serves and self._has_spoken():
            self.serves = True
            _log.info("worker_serves", extra={"pid": self.pid})
        elif monotonic_ns() > self._due_ns and (self.leaving or not self.serves):
            _log.error("worker_overdue", extra={"pid": self.pid})
            self._due_ns += DRAIN_SECONDS * 1_000_000_000  # said once, unless even that does not end it
            self.kill()
        return code

    def leave(self) -> None:
        """Let it drain; it is killed when that takes too long."""
        if not self.leaving:
            self.leaving = True
            self._due_ns = monotonic_ns() + DRAIN_SECONDS * 1_000_000_000
            self._process.terminate()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def lived_seconds(self) -> float:
        """Return the time since its start."""
        return (monotonic_ns() - self._started_ns) / 1e9

    def _has_spoken(self) -> bool:
        try:
            return bool(self._line.recv(1))
        except OSError:  # nothing yet, or it has just died
            return False


class Place:
    """One listening socket, and the process that accepts from it; while they change there are two."""

    def __init__(self, spawn: Callable[[], Process]) -> None:
        self.processes: list[Process] = []
        self._spawn = spawn
        self._crashes = 0
        self._again_ns = 0

    @property
    def settled(self) -> bool:
        """Whether there is one process, up to date, and it serves."""
        return [(process.serves, process.outdated) for process in self.processes] == [(True, False)]

    def renew(self) -> None:
        """From now on, another process is wanted."""
        for process in self.processes:
            process.outdated = True

    def look(self) -> None:
        """Do what is next; call this often."""
        for process in tuple(self.processes):
            if (code := process.look()) is not None:
                self.processes.remove(process)
                if not process.leaving:
                    self._crashed(process, code)
        wanted = [process for process in self.processes if not process.outdated]
        if not wanted and monotonic_ns() >= self._again_ns:
            self.processes.append(self._spawn())
        elif wanted and wanted[0].serves:
            for process in self.processes:
                if process.outdated:
                    process.leave()

    def _crashed(self, process: Process, code: int) -> None:
        self._crashes = 1 if process.lived_seconds() > _FORGIVEN_SECONDS else self._crashes + 1
        pause = min(_FIRST_PAUSE * 2 ** (self._crashes - 1), _LONGEST_PAUSE)
        self._again_ns = monotonic_ns() + int(pause * 1e9)
        _log.error("worker_died", extra={"pid": process.pid, "code": code, "again_in_seconds": pause})


def _spawning(own: int, sockets: list[int], rates: int, environment: Mapping[str, str]) -> Callable[[], Process]:
    inherited = [rates, own, *(each for each in sockets if each != own)]
    command = [sys.executable, "-m", "api", "serve", "--inherited", *map(str, inherited)]
    return lambda: Process(command, environment, inherited)


def _end(processes: list[Process]) -> None:
    """Let all of them drain at once, and wait for them."""
    for process in processes:
        process.leave()
    while processes:
        processes = [process for process in processes if process.look() is None]
        time.sleep(_LOOK)
