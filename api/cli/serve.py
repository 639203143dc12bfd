"""`workbench engine`, and `workbench serve`: the API, as one process or as several behind one port (`--workers N`).

With several workers, this process supervises them. Each worker slot has a listening socket of its own in one
SO_REUSEPORT group, so that the kernel spreads connections evenly (of processes that accepted from one common socket,
one took 97 of 100 connections). The sockets stay open here: connections queued for a worker that died are answered by
its replacement. Workers are spawned, not forked, so a renewed worker runs the code that is installed at that time.

SIGHUP renews the workers one after another: the new process serves before the old one drains, so no request is lost.
SIGTERM and SIGINT drain all workers.
"""

import argparse
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import FrameType

from api.cli import network
from api.cli.database import DatabaseUrls, process_database, process_secret, require_fit_database
from api.cli.errors import add_leash, port
from api.clock import monotonic_ns
from api.ingest.queue import BUCKETS_FILE_BYTES
from api.process import install_logging
from api.settings import Settings, child_environment

MAX_WORKERS = 256
# `auto`: two, so that one serves while the other is renewed; at most eight, because Postgres also needs processors.
MIN_AUTO_WORKERS, MAX_AUTO_WORKERS = 2, 8

START_TIMEOUT_S = 60
DRAIN_TIMEOUT_S = 30  # longer than a worker's own limit for draining
_POLL_INTERVAL_S = 0.1
_FIRST_RESTART_DELAY_S = 0.25

_log = logging.getLogger("workbench.workers")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (default %(default)s)")
    parser.add_argument(
        "--workers",
        type=worker_count,
        default=1,
        metavar="N",
        help="number of processes (default %(default)s), or auto: one per processor, from 2 to 8; SIGHUP renews them",
    )
    # From the supervisor to a worker: file descriptors of the rate limits, of its own socket, and of the other sockets.
    parser.add_argument("--inherited", type=int, nargs="+", help=argparse.SUPPRESS)
    add_leash(parser)
    parser.set_defaults(run=run)


def add_engine(parser: argparse.ArgumentParser) -> None:
    add_leash(parser)
    parser.set_defaults(run=run_engine)


def run_engine(args: argparse.Namespace, settings: Settings) -> None:
    from api.worker import work

    with process_database(args, settings) as (urls, secret):
        work(settings, urls.dsn, secret)


def run(args: argparse.Namespace, settings: Settings) -> None:
    if args.inherited is not None:
        run_worker(settings, *args.inherited)
        return
    network.require_free_port(args.host, args.port, "--port")
    with process_database(args, settings) as (urls, secret):
        sockets = network.listen(args.host, args.port, args.workers)
        if args.workers > 1:
            shared = {"DATABASE_URL": urls.dsn, "WORKBENCH_DATA_DIR": str(settings.data_dir)}
            run_workers(sockets, child_environment(shared))
        else:
            from api.app import create_app, serve

            serve(create_app(settings, urls.dsn, secret), sockets)


def run_workers(sockets: list[socket.socket], environment: Mapping[str, str]) -> None:
    """Keep one worker process per socket, with this environment, until a signal stops the supervisor."""
    signals = _SupervisorSignals()
    with tempfile.TemporaryFile() as rates:
        rates.truncate(BUCKETS_FILE_BYTES)
        descriptors = [listener.fileno() for listener in sockets]
        slots: list[WorkerSlot] = []
        for own in descriptors:
            inherited = [rates.fileno(), own, *(descriptor for descriptor in descriptors if descriptor != own)]
            command = [sys.executable, "-P", "-m", "api", "serve", "--inherited", *map(str, inherited)]
            slots.append(WorkerSlot(functools.partial(ApiProcess, command, environment, inherited)))
        to_renew: list[WorkerSlot] = []
        while not signals.stop:
            if signals.renew:
                signals.renew, to_renew = False, list(slots)
            for slot in slots:
                slot.supervise()
            # A worker is renewed when the last one serves: if new code does not start, the old workers keep serving.
            if to_renew and all(slot.settled for slot in slots):
                to_renew.pop(0).renew()
            time.sleep(_POLL_INTERVAL_S)
        for listener in sockets:
            listener.close()  # new clients get "connection refused" instead of waiting in the queue of a closing server
        processes = [process for slot in slots for process in slot.processes]
        for process in processes:
            process.drain()
        while processes:
            processes = [process for process in processes if process.poll() is None]
            time.sleep(_POLL_INTERVAL_S)


class _SupervisorSignals:
    """Requests that arrived as signals: `renew` for SIGHUP, `stop` for SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.stop = self.renew = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.renew = True
        else:
            self.stop = True


class WorkerSlot:
    """A worker slot: one listening socket and the process that accepts from it (two processes during a renewal)."""

    def __init__(self, spawn: "Callable[[], ApiProcess]") -> None:
        self.processes: list[ApiProcess] = []
        self._spawn = spawn
        self._delay = network.RestartDelay(_FIRST_RESTART_DELAY_S)

    @property
    def settled(self) -> bool:
        """Whether exactly one process is running, it serves, and it is not to be renewed."""
        return [(process.serves, process.outdated) for process in self.processes] == [(True, False)]

    def renew(self) -> None:
        """Replace the current process; `supervise` starts the new one."""
        for process in self.processes:
            process.outdated = True

    def supervise(self) -> None:
        """Collect processes that ended, start a missing one, and drain outdated ones. Call this often."""
        for process in tuple(self.processes):
            if (code := process.poll()) is not None:
                self.processes.remove(process)
                if not process.draining:
                    delay_s = self._delay.crashed(process.uptime_s())
                    _log.error("worker_died", extra={"pid": process.pid, "code": code, "again_in_seconds": delay_s})
        current = [process for process in self.processes if not process.outdated]
        if not current and self._delay.is_over():
            try:
                self.processes.append(self._spawn())
            except OSError as error:  # no memory, or no free process or file: the other workers keep serving
                again_s = self._delay.crashed(0)
                _log.error("worker_not_started", extra={"error": str(error), "again_in_seconds": again_s})
        elif current and current[0].serves:
            for process in self.processes:
                if process.outdated:
                    process.drain()


class ApiProcess:
    """One worker process. Its stdin is a socket to the supervisor.

    The worker writes one byte to it when it serves, and ends when the supervisor's end is closed.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], inherited: list[int]) -> None:
        self._socket, stdin = socket.socketpair()
        self._socket.setblocking(False)
        with stdin:  # the child has its own copy; ours must close, or the child would never see the end of the stream
            self._process = subprocess.Popen(command, env=environment, stdin=stdin.fileno(), pass_fds=inherited)
        self.pid = self._process.pid
        self.serves = self.outdated = self.draining = False
        self._started_ns = monotonic_ns()
        self._deadline_ns = self._started_ns + START_TIMEOUT_S * 1_000_000_000

    def poll(self) -> int | None:
        """Update `serves`, and kill the process after its deadline; return its exit code once it has ended."""
        code = self._process.poll()
        if code is not None:
            self._socket.close()
        elif not self.serves and self._reported_ready():
            self.serves = True
            _log.info("worker_serves", extra={"pid": self.pid})
        elif monotonic_ns() > self._deadline_ns and (self.draining or not self.serves):
            _log.error("worker_overdue", extra={"pid": self.pid})
            self._deadline_ns += DRAIN_TIMEOUT_S * 1_000_000_000  # log again only if SIGKILL does not end the process
            self.kill()
        return code

    def drain(self) -> None:
        """Send SIGTERM, after which the process completes its requests and ends; `poll` kills it after the timeout."""
        if not self.draining:
            self.draining = True
            self._deadline_ns = monotonic_ns() + DRAIN_TIMEOUT_S * 1_000_000_000
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def uptime_s(self) -> float:
        return (monotonic_ns() - self._started_ns) / 1e9

    def _reported_ready(self) -> bool:
        try:
            return bool(self._socket.recv(1))
        except OSError:  # no data yet, or the process has just died
            return False


def run_worker(settings: Settings, rates: int, *sockets: int) -> None:
    """Serve as one of several workers; `rates` and `sockets` are inherited file descriptors."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal sends it to the whole group, but it is for the supervisor
    network.follow_parent()
    from api.app import create_app, serve

    assert settings.database_url is not None
    install_logging()
    urls = DatabaseUrls(settings.database_url, None)
    require_fit_database(urls)
    with process_secret(settings, urls) as secret:
        app = create_app(settings, urls.dsn, secret, rates=rates)
        serve(app, [socket.socket(fileno=descriptor) for descriptor in sockets], network.report_ready)


def worker_count(text: str) -> int:
    if text == "auto":
        return min(max(os.cpu_count() or 1, MIN_AUTO_WORKERS), MAX_AUTO_WORKERS)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of workers; use 1 to {MAX_WORKERS}, or auto")
    return int(text)
